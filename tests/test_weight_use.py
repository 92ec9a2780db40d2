"""Modules that use weights in their own ways: right, or left in float with a word."""

import pytest
import torch
from conftest import SMALL, sqnr_db
from torch import nn
from torch.nn.functional import linear
from transformers import BertConfig, BertModel

from hf_smoothquant import SmoothQuantConfig
from hf_smoothquant.calibration.weight_use import find_weight_use
from hf_smoothquant.conversion import quantize_model
from hf_smoothquant.linear import Int8Linear

IDS = torch.arange(5, 29).reshape(2, 12)
SIZE = SMALL["hidden_size"]


class ReadsTheWeight(nn.Module):
    """A Linear whose weight is multiplied by without calling it."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(SIZE, SIZE)

    def forward(self, x):
        return linear(x, self.project.weight, self.project.bias)


class TiedTranspose(ReadsTheWeight):
    """Called, and its weight used once more, transposed."""

    def forward(self, x):
        return torch.tanh(self.project(x)) @ self.project.weight.t().contiguous()


class Slices(ReadsTheWeight):
    def forward(self, x):
        half = SIZE // 2
        return torch.cat([linear(x, self.project.weight[:half]), self.project(x)[..., half:]], -1)


class LooksAtShapes(ReadsTheWeight):
    """No values are read: it can be int8."""

    def forward(self, x):
        assert self.project.weight.dtype.is_floating_point and len(self.project.weight) == x.size(-1)
        return self.project(x.to(self.project.weight.device))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(SIZE, 4, batch_first=True)
        self.project = nn.Linear(SIZE, SIZE)

    def forward(self, x):
        return self.project(self.attend(x, x, x)[0])


class Experts(nn.Module):
    """Weights of two experts in one tensor, and a router that chooses by a product of its own."""

    def __init__(self):
        super().__init__()
        self.stacked = nn.Parameter(torch.randn(2, SIZE, SIZE) * 0.1)
        self.router = nn.Parameter(torch.randn(2, SIZE) * 0.1)

    def forward(self, x):
        shares = torch.einsum("btk,ek->bte", x, self.router).softmax(-1)
        return sum(shares[..., i, None] * (x @ self.stacked[i].transpose(0, 1)) for i in range(2))


def bert_with(module):
    """A BERT whose pooler is `module`; the model passes all hidden states through it."""

    class Model(BertModel):
        def forward(self, input_ids):
            return self.extra(super().forward(input_ids).last_hidden_state)

    model = Model(BertConfig(vocab_size=64, initializer_range=0.2, **SMALL), add_pooling_layer=False).eval()
    model.extra = module
    return model


@pytest.mark.parametrize(
    ("module", "int8", "kept"),
    [
        (ReadsTheWeight, [], {"extra.project": "weight used by other code"}),
        (TiedTranspose, [], {"extra.project": "weight used by other code"}),
        (Slices, [], {"extra.project": "weight used by other code"}),
        (LooksAtShapes, ["extra.project"], {}),
        (
            Attention,
            ["extra.project"],
            {
                "extra.attend": "weights not in a Linear",
                "extra.attend.out_proj": "is a NonDynamicallyQuantizableLinear, not a plain nn.Linear",
            },
        ),
        (Experts, [], {"extra": "weights not in a Linear"}),
    ],
)
def test_modules_of_others(module, int8, kept, transformers_warnings):
    model = bert_with(module())
    with torch.no_grad():
        reference = model(IDS)
    _, report = quantize_model(model, SmoothQuantConfig(dataset=[IDS]))
    assert report.kept == kept
    found = {name for name, one in model.named_modules() if isinstance(one, Int8Linear)}
    assert [name for name in found if name.startswith("extra")] == int8 and len(found) == 12 + len(int8)
    with torch.no_grad():
        assert sqnr_db(reference, model(IDS)) > 20
    used = "other code than the Linear itself uses the weight: extra.project." in transformers_warnings.text
    assert used == ("weight used by other code" in kept.values())


def test_the_model_is_left_as_it_was():
    model = bert_with(TiedTranspose())
    linears = {name: one for name, one in model.named_modules() if isinstance(one, nn.Linear)}
    use = find_weight_use(model, linears, {"input_ids": IDS})
    assert use.read == ["extra.project"] and use.products == []
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())
