import copy
import pickle

import pytest
import torch
from conftest import sqnr_db
from torch import nn

from hf_smoothquant.int8 import quantize_weight
from hf_smoothquant.linear import Int8Linear
from hf_smoothquant.smoothing.factors import activation_scale, smoothing_factors

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def int8_linear(linear, x, activation="static", alpha=0.5):
    x_absmax = x.float().reshape(-1, x.shape[-1]).abs().amax(0)
    factors = smoothing_factors(x_absmax, linear.weight.detach().abs().amax(0), alpha)
    scale = activation_scale(x_absmax, factors) if activation == "static" else None
    quantized = copy.deepcopy(linear)
    weight = quantize_weight(linear.weight, factors, scale, act_ndim=x.ndim)
    quantized.weight = nn.Parameter(weight, requires_grad=False)
    return Int8Linear.adopt(quantized).eval()


def test_weights_and_scales_equal_the_hand_written_reference():
    weight = torch.tensor([[1.0, -2.0, 0.5], [0.0, 0.25, -0.125]])
    quantized = quantize_weight(weight, factors=torch.tensor([2.0, 1.0, 4.0]), act_scale=torch.tensor(0.1))
    # Smoothed rows: [2, -2, 2] and [0, 0.25, -0.5]; scales 2/127 and 0.5/127.
    assert quantized.scale.flatten().tolist() == pytest.approx([2 / 127, 0.5 / 127])
    assert quantized.qdata.tolist() == [[127, -127, 127], [0, 64, -127]]  # 63.5 rounds to even
    assert quantized.qdata.dtype == torch.int8 and quantized.scale.dtype == torch.float32
    assert quantized.act_pre_scale.tolist() == [0.5, 1.0, 0.25]
    assert quantized.act_quant_scale.shape == (1, 1, 1)
    assert quantized.zero_point is None and quantized.act_quant_zero_point is None


def test_static_output_equals_the_hand_written_reference():
    linear, x = nn.Linear(32, 48), torch.randn(2, 5, 32) * torch.logspace(-1, 1, 32)
    layer = int8_linear(linear, x)
    weight = layer.weight
    x_int8 = (x * weight.act_pre_scale / weight.act_quant_scale).round().clamp(-128, 127)
    expected = x_int8 @ weight.qdata.float().T * weight.act_quant_scale * weight.scale.flatten() + linear.bias
    torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-5)
    assert sqnr_db(linear(x), layer(x)) > 35


@pytest.mark.parametrize("activation", ["static", "dynamic"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(32,), (7, 32), (2, 7, 32), (2, 3, 7, 32), (1, 1, 32)])
def test_any_number_of_dimensions(activation, dtype, shape):
    linear = nn.Linear(32, 48).to(dtype)
    layer = int8_linear(linear, torch.randn(64, 7, 32).to(dtype), activation)
    x = torch.randn(*shape).clamp(-2, 2).to(dtype)
    y = layer(x)
    assert y.shape == (*shape[:-1], 48) and y.dtype == dtype
    assert sqnr_db(linear(x), y) > 28


@pytest.mark.parametrize("activation", ["static", "dynamic"])
def test_zero_tokens(activation):
    layer = int8_linear(nn.Linear(32, 48), torch.randn(2, 4, 32), activation)
    assert layer(torch.empty(2, 0, 32)).shape == (2, 0, 48)


@pytest.mark.parametrize("size", [(33, 47), (100, 1), (2, 64)])
def test_odd_sizes(size):
    linear = nn.Linear(*size)
    x = torch.randn(2, 9, size[0])
    assert sqnr_db(linear(x), int8_linear(linear, x)(x)) > 28


def test_float16_does_not_overflow():
    """The products of int8 reach 127 * 127 * K * x_scale before the weight's scale brings them down."""
    linear = nn.Linear(512, 64, bias=False).half()
    linear.weight.data.fill_(0.001)
    x = torch.full((1, 4, 512), 100.0, dtype=torch.float16)
    torch.testing.assert_close(int8_linear(linear, x)(x), linear(x), rtol=0.01, atol=0)


@pytest.mark.parametrize("activation", ["static", "dynamic"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dead_channels_columns_and_layers(activation, dtype):
    """Channels silent in calibration and loud later, zero weight columns, an all-zero layer: finite, error bounded."""
    linear = nn.Linear(32, 48)
    with torch.no_grad():
        linear.weight[:, 3] = 0
        linear.weight[5] = 0
    linear = linear.to(dtype)
    x = torch.randn(64, 7, 32)
    x[..., 8] = 0
    layer = int8_linear(linear, x.to(dtype), activation)
    loud = x.clone()
    loud[..., 8] = 1.5
    loud = loud.to(dtype)
    assert torch.isfinite(layer(loud)).all()
    assert sqnr_db(linear(loud), layer(loud)) > 25

    zero = nn.Linear(32, 48, bias=False).to(dtype)
    nn.init.zeros_(zero.weight)
    assert (int8_linear(zero, x.to(dtype), activation)(loud) == 0).all()
    silent = int8_linear(linear, torch.zeros(2, 4, 32, dtype=dtype), activation)
    assert torch.isfinite(silent(loud)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_dequantized_weight_is_the_original_up_to_rounding(dtype):
    weight = (torch.randn(48, 32) * torch.logspace(-1, 1, 32)).to(dtype)
    factors = torch.rand(32) + 0.5
    back = quantize_weight(weight, factors, torch.tensor(0.1)).dequantize()
    assert back.dtype == dtype
    step = (weight.float() * factors).abs().amax(1, keepdim=True) / 127 / factors
    slack = weight.float().abs() * torch.finfo(dtype).eps
    assert ((back.float() - weight.float()).abs() <= step / 2 * 1.001 + slack).all()


def test_copies_and_repr():
    x = torch.randn(2, 4, 32)
    layer = int8_linear(nn.Linear(32, 48), x)
    for clone in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(clone(x), layer(x))
    assert repr(layer) == "Int8Linear(in_features=32, out_features=48, bias=True, activation=static, smoothed=True)"
