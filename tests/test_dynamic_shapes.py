"""Sizes that vary: right values and a bounded number of compilations (cases: lengths of 0, 1 and 512+, odd sizes)."""

import pytest
import torch
from conftest import TEXTS, sqnr_db
from torch import nn
from torch._dynamo.utils import counters
from transformers import AutoModelForQuestionAnswering, BertConfig, BertForQuestionAnswering

import hf_smoothquant
from hf_smoothquant import SmoothQuantConfig, cpu
from hf_smoothquant.conversion import quantize_model
from hf_smoothquant.int8 import quantize_weight
from hf_smoothquant.linear import Int8Linear

GENERATOR = torch.Generator().manual_seed(0)


def request(batch, length):
    ids = torch.randint(5, 64, (batch, length), generator=GENERATOR)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def compilations():
    return counters["stats"]["unique_graphs"]


@torch.no_grad()
def check(model, compiled, batch, length):
    """The compiled model gives what the eager one gives."""
    inputs = request(batch, length)
    expected, output = model(**inputs), compiled(**inputs)
    assert output.start_logits.shape == (batch, length)
    assert sqnr_db(expected.start_logits, output.start_logits) > 40
    assert sqnr_db(expected.end_logits, output.end_logits) > 40


@pytest.fixture(scope="module")
def odd_bert():
    """Neither 52 nor 101 is a multiple of 8; positions for more than 512 tokens."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 52, "intermediate_size": 101, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = BertConfig(vocab_size=64, max_position_embeddings=600, initializer_range=0.2, **sizes)
    model = BertForQuestionAnswering(config).eval()
    reference = BertForQuestionAnswering(config).eval()
    reference.load_state_dict(model.state_dict())
    # Of length 1, too: attention over many tokens averages them, and a token alone has larger values.
    quantize_model(model, SmoothQuantConfig(dataset=[request(4, 40), request(64, 1)]))
    return model, reference


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (1, 555), (3, 7)])
def test_eager_sizes(odd_bert, batch, length):
    model, reference = odd_bert
    inputs = request(batch, length)
    with torch.no_grad():  # hidden states: a single token has one logit, too little to judge by
        expected, output = reference.bert(**inputs), model.bert(**inputs)
    assert sqnr_db(expected.last_hidden_state, output.last_hidden_state) > 25


@pytest.mark.parametrize(("dynamic", "most"), [(None, 3), pytest.param(True, 2, marks=pytest.mark.slow)])
def test_fifty_lengths_compile_a_bounded_number_of_times(odd_bert, dynamic, most):
    """Lengths 1 to 50 and 555 in batch 1, in random order: with `None` one for the first length, one for all others,
    and one for a single token."""
    model, _ = odd_bert
    compiled = hf_smoothquant.compile(model, dynamic=dynamic)
    before = compilations()
    lengths = 1 + torch.randperm(50, generator=GENERATOR)
    for length in (*lengths.tolist(), 555):
        check(model, compiled, 1, length)
    assert compilations() - before <= most
    assert compiled.fusion_coverage.fused == (0 if cpu.SATURATES else 6 * (compilations() - before))
    assert compiled.fusion_coverage.unfused == []


@pytest.mark.slow
@pytest.mark.parametrize(("dynamic", "most"), [(None, 6), (True, 4)])
def test_batches_and_lengths_together(odd_bert, dynamic, most):
    """The bounds that `compile` documents; the last requests meet compiled code only."""
    model, _ = odd_bert
    compiled = hf_smoothquant.compile(model, dynamic=dynamic)
    before = compilations()
    for size in ((1, 9), (1, 20), (1, 1), (4, 8), (2, 31), (7, 1), (3, 1)):
        check(model, compiled, *size)
    assert (after := compilations()) - before <= most
    for size in ((1, 33), (5, 17), (6, 555), (9, 1), (1, 2), (2, 2), (1, 1)):
        check(model, compiled, *size)
    assert compilations() == after


class Residual(nn.Module):
    """A block whose output is added to its input; unlike whole models it can be asked for zero tokens."""

    def __init__(self, size=40):
        super().__init__()
        self.up, self.down = nn.Linear(size, 72), nn.Linear(72, size)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))


@pytest.mark.parametrize("dynamic", [True, False])
def test_zero_and_one_tokens_with_a_residual_add(dynamic):
    block = Residual().eval()
    for linear in (block.up, block.down):
        weight = quantize_weight(linear.weight, None, torch.tensor(4.0 / 127))
        linear.weight = nn.Parameter(weight, requires_grad=False)
        Int8Linear.adopt(linear)
    compiled = hf_smoothquant.compile(block, dynamic=dynamic)
    with torch.no_grad():
        for shape in ((1, 6, 40), (1, 1, 40), (1, 0, 40), (0, 6, 40)):
            x = torch.randn(shape)
            expected, output = block(x), compiled(x)
            assert output.shape == shape and output.dtype == x.dtype
            torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("gelu", ["gelu", "gelu_new"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("max_autotune", [False, True])
def test_gelu_and_autotuning_keep_every_linear_fused(tiny_config, save_tiny, gelu, dtype, max_autotune):
    tiny_config.hidden_act = gelu
    folder = save_tiny(BertForQuestionAnswering(tiny_config))
    config = SmoothQuantConfig(dataset=TEXTS)
    model = AutoModelForQuestionAnswering.from_pretrained(folder, dtype=dtype, quantization_config=config)
    compiled = hf_smoothquant.compile(model, options={"max_autotune": max_autotune})
    inputs = request(2, 10)
    with torch.no_grad():
        expected, output = model(**inputs), compiled(**inputs)
    assert sqnr_db(expected.start_logits, output.start_logits) > (60 if dtype == torch.float32 else 20)
    assert compiled.fusion_coverage.fused == (0 if cpu.SATURATES else 12)
    assert compiled.fusion_coverage.unfused == []
