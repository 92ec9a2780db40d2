import pytest
import torch
from torch import nn

import hf_smoothquant
from hf_smoothquant import hints
from hf_smoothquant.int8 import quantize_weight
from hf_smoothquant.linear import Int8Linear


@pytest.fixture
def layer(monkeypatch):
    monkeypatch.setattr(hints, "_due", True)
    linear = nn.Linear(32, 48)
    weight = quantize_weight(linear.weight, None, None)
    linear.weight = nn.Parameter(weight, requires_grad=False)
    return Int8Linear.adopt(linear).eval()


def test_slow_eager_int8_is_said_once(layer, transformers_warnings):
    for _ in range(3):
        layer(torch.randn(4, 32))
    assert transformers_warnings.text.count("slower than float") == 1
    assert "hf_smoothquant.compile(model)" in transformers_warnings.text


def test_nothing_is_said_where_it_is_on_purpose_or_compiled(layer, transformers_warnings):
    x = torch.randn(4, 32)
    with hints.eager_on_purpose():
        layer(x)
    hf_smoothquant.compile(layer)(x)
    assert "slower than float" not in transformers_warnings.text
    layer(x)
    assert "slower than float" in transformers_warnings.text
