"""What may stand between a module and the Linears that read it: small models made for one question each."""

import pytest
import torch
from conftest import SMALL
from torch import nn
from transformers import BertConfig, BertModel

from hf_smoothquant.smoothing import folding
from hf_smoothquant.smoothing.folding import find_folds

IDS = torch.arange(5, 25).reshape(2, 10)
CONFIG = BertConfig(vocab_size=64, **SMALL)


class Pair(BertModel):
    """Two Linears and something between them."""

    def __init__(self, between):
        super().__init__(CONFIG)
        self.encoder = nn.Identity()
        self.a, self.b, self.between = nn.Linear(64, 64), nn.Linear(64, 64), between

    def forward(self, input_ids, **kwargs):
        return {"out": self.b(self.between(self.a(self.embeddings(input_ids))))}


def write_into_a_buffer(x):
    buffer = torch.zeros_like(x)
    buffer[:, 1:] = x[:, 1:]
    return buffer


@pytest.mark.parametrize(
    ("between", "folds"),
    [
        (torch.relu, True),
        (nn.LeakyReLU(), True),
        (lambda x: 3 * x.transpose(0, 1).contiguous().transpose(0, 1), True),
        (lambda x: x.softmax(-1), False),
        (nn.GELU(), False),
        (nn.SiLU(), False),
        (lambda x: x.square(), False),
        (lambda x: x + 1e-3, False),
        (lambda x: x + x.flip(0), True),  # a sum of its own
        (lambda x: x.clamp(max=1e3), False),  # linear on all values of the batch, not on all values
        (lambda x: x.flip(-1), False),  # scales, in another order of the channels
        (lambda x: x.mul_(2), False),
        (write_into_a_buffer, False),
    ],
)
def test_what_may_stand_between_two_linears(between, folds):
    model = Pair(between).eval()
    groups = [{"a": model.a}, {"b": model.b}]
    assert find_folds(model, groups, {"input_ids": IDS}) == (
        {1: "a", 0: "embeddings.LayerNorm"} if folds else {0: "embeddings.LayerNorm"}
    )


def test_a_wrong_fold_is_taken_back_and_the_right_ones_kept(monkeypatch):
    """Of eight Linears in a row one is read with its channels reversed; halving finds it in few passes."""

    class Model(Pair):
        def __init__(self):
            super().__init__(None)
            self.chain = nn.ModuleList(nn.Linear(64, 64) for _ in range(9))

        def forward(self, input_ids, **kwargs):
            x = self.embeddings(input_ids)
            for index, linear in enumerate(self.chain):
                x = linear(x.flip(-1) if index == 3 else x)
            return {"out": x}

    model = Model().eval()
    groups = [{f"chain.{index}": linear} for index, linear in enumerate(model.chain)]
    passes = []
    monkeypatch.setattr(
        folding, "float_outputs", lambda *args, run=folding.float_outputs: passes.append(1) or run(*args)
    )
    weight = model.chain[2].weight.clone()
    expected = {index: f"chain.{index - 1}" for index in range(1, 9) if index != 3} | {0: "embeddings.LayerNorm"}
    assert find_folds(model, groups, {"input_ids": IDS}) == expected
    assert torch.equal(model.chain[2].weight, weight)
    assert len(passes) <= 1 + 8


def test_a_weight_that_is_shared_or_read_elsewhere_is_left_alone():
    class Model(Pair):
        def __init__(self, shared):
            super().__init__(torch.relu)
            self.other = nn.Linear(64, 64)
            if shared:
                self.other.weight = self.a.weight

        def forward(self, input_ids, **kwargs):
            x = self.embeddings(input_ids)
            # Never reached with these ids: tracing and trying can't see it.
            return {"out": self.b(torch.relu(self.a(x)))} if input_ids.max() < 60 else {"out": self.other(x)}

    for shared in (False, True):
        model = Model(shared).eval()
        folds = find_folds(model, [{"a": model.a}, {"b": model.b}], {"input_ids": IDS})
        assert folds.get(1) == (None if shared else "a")

    class Reading(Pair):
        def forward(self, input_ids, **kwargs):
            x = self.embeddings(input_ids)
            return {"out": self.b(torch.relu(self.a(x))), "norm": self.a.weight.norm(dim=1)}

    model = Reading(None).eval()
    assert 1 not in find_folds(model, [{"a": model.a}, {"b": model.b}], {"input_ids": IDS})


def test_a_norm_that_a_residual_reads_too_is_not_folded_into():
    """A second branch reads the output: the residual in BERT, here an addition behind a pre-norm Linear."""

    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.norm2 = nn.LayerNorm(64), nn.LayerNorm(64)
            self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            x = self.norm(x)
            x = self.a(x) + x
            return self.b(self.norm2(x))

    class Model(BertModel):
        def __init__(self, config):
            super().__init__(config)
            self.encoder = nn.Identity()
            self.branch = Branch()

        def forward(self, input_ids, **kwargs):
            return {"out": self.branch(self.embeddings(input_ids))}

    model = Model(CONFIG).eval()
    groups = [{"branch.a": model.branch.a}, {"branch.b": model.branch.b}]
    assert find_folds(model, groups, {"input_ids": IDS}) == {1: "branch.norm2"}
