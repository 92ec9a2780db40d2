"""Scales of weights and activations: per row, tensor and token, symmetric or not, or none for the input at all."""

import math

import pytest
import torch
from conftest import TEXTS, logits, sqnr_db
from torch import nn
from torchao.quantization import Int8Tensor
from transformers import AutoModelForQuestionAnswering

import hf_smoothquant
from hf_smoothquant import SmoothQuantConfig, cpu, quantization_report
from hf_smoothquant.int8 import quantize_weight
from hf_smoothquant.linear import Int8Linear, asymmetric_product, float_product
from hf_smoothquant.smoothing.factors import activation_range


def load(folder, **arguments):
    if arguments.get("activation") != "none":
        arguments.setdefault("dataset", TEXTS)
    config = SmoothQuantConfig(**arguments)
    return AutoModelForQuestionAnswering.from_pretrained(folder, dtype=torch.float32, quantization_config=config)


def test_a_weight_scale_for_the_whole_tensor():
    weight = torch.tensor([[1.0, -2.0], [0.0, 0.25]])
    int8 = quantize_weight(weight, config=SmoothQuantConfig(weight_granularity="tensor"))
    # One scale, 2 / 127, for both rows: 0.25 is 15.875 steps.
    assert int8.scale.flatten().tolist() == pytest.approx([2 / 127, 2 / 127])
    assert int8.qdata.tolist() == [[64, -127], [0, 16]]  # 63.5 rounds to even


def test_asymmetric_range_by_hand():
    # Smoothed by 2: from -1 to 4, so 255 steps of 5 / 255, and zero lies 51 steps above the lowest.
    scale, zero_point = activation_range(torch.tensor([-2.0, 0.0]), torch.tensor([8.0, 1.0]), torch.tensor([2.0, 1.0]))
    assert scale.item() == pytest.approx(5 / 255) and zero_point.item() == -128 + 51
    assert zero_point.dtype == torch.int8 and scale.dtype == torch.float32
    # An input that is never negative uses all of int8 for its one side.
    scale, zero_point = activation_range(torch.zeros(1) + 1, torch.ones(1) * 51, torch.ones(1))
    assert scale.item() == pytest.approx(51 / 255) and zero_point.item() == -128
    scale, zero_point = activation_range(torch.zeros(1), torch.zeros(1), torch.ones(1))
    assert scale > 0 and math.isfinite(scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("shift", [0.0, 3.0, -3.0])
def test_asymmetric_product_equals_the_hand_written_reference(static, dtype, shift):
    x = (torch.randn(2, 9, 200) + shift).to(dtype)
    weight, bias = torch.randn(48, 200, dtype=dtype), torch.randn(48, dtype=dtype)
    rows = x.float().reshape(-1, 200)
    scale, zero_point = activation_range(rows.amin(0), rows.amax(0), torch.ones(200)) if static else (None, None)
    config = SmoothQuantConfig("static" if static else "dynamic", symmetric=False)
    int8 = quantize_weight(weight, None, scale, zero_point, config=config, act_ndim=3)
    if not static:
        low, high = x.float().amin(-1, keepdim=True).clamp(max=0), x.float().amax(-1, keepdim=True).clamp(min=0)
        scale = (high - low) / 255
        zero_point = (-128 - (low / scale).round()).clamp(-128, 127)
    x_int8 = (x.float() / scale).round().add(zero_point).clamp(-128, 127)
    expected = nn.functional.linear((x_int8 - zero_point) * scale, int8.dequantize(torch.float32), bias.float())
    for product in (asymmetric_product, float_product):
        output = product(x, int8, bias)
        assert output.dtype == dtype and output.shape == (2, 9, 48)
        # bfloat16 rounds the product before the large share of the zero point is taken off.
        assert sqnr_db(expected, output.float()) > (80 if dtype == torch.float32 else 35)
        assert sqnr_db(nn.functional.linear(x, weight, bias).float(), output.float()) > 33


def test_one_sided_inputs_gain_from_a_zero_point(tiny_bert):
    groups = {}
    for symmetric in (True, False):
        report = quantization_report(load(tiny_bert, symmetric=symmetric))
        groups[symmetric] = {group.names[0]: group.sqnr_db for group in report.groups}
    after_gelu = [name for name in groups[True] if name.endswith("output.dense") and "attention" not in name]
    assert len(after_gelu) == 2
    for name in after_gelu:
        assert groups[False][name] > groups[True][name] + 0.5


@pytest.mark.parametrize(
    ("arguments", "minimum"),
    [
        ({"weight_granularity": "tensor"}, 20),
        ({"weight_granularity": "tensor", "activation": "dynamic"}, 20),
        ({"activation": "dynamic", "activation_granularity": "tensor"}, 20),
        ({"symmetric": False}, 20),
        ({"symmetric": False, "activation": "dynamic"}, 25),
        ({"symmetric": False, "activation": "dynamic", "activation_granularity": "tensor"}, 20),
        ({"activation": "none"}, 30),
        ({"activation": "none", "weight_granularity": "tensor"}, 25),
    ],
)
def test_models_are_close_to_float_and_reload_to_the_bit(tiny_bert, tmp_path, arguments, minimum):
    reference = logits(AutoModelForQuestionAnswering.from_pretrained(tiny_bert, dtype=torch.float32))
    model = load(tiny_bert, **arguments)
    assert sqnr_db(reference, logits(model)) > minimum
    assert sum(isinstance(module, Int8Linear) for module in model.modules()) == 12
    model.save_pretrained(tmp_path)
    again = AutoModelForQuestionAnswering.from_pretrained(tmp_path)
    assert torch.equal(logits(again), logits(model))
    assert str(quantization_report(again)) == str(quantization_report(model))
    for name, weight in model.state_dict().items():
        if isinstance(weight, Int8Tensor):
            assert again.state_dict()[name].act_quant_kwargs == weight.act_quant_kwargs
    model.dequantize()
    assert sqnr_db(reference, logits(model)) > (25 if arguments.get("weight_granularity") else 30)


def test_weights_only_need_no_data(tiny_bert):
    model = load(tiny_bert, activation="none", tokenizer="nowhere")
    assert model.config.quantization_config.calibration is None
    weight = model.bert.encoder.layer[0].output.dense.weight
    assert weight.act_quant_kwargs is None and weight.act_pre_scale is None and weight.act_quant_scale is None
    assert "activation=none" in repr(model.bert.encoder.layer[0].output.dense)
    group = quantization_report(model).groups[0]
    assert group.activation == "none" and group.alpha is None and 35 < group.sqnr_db < 60


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weight_granularity": "token"}, "weight_granularity must be 'row' or 'tensor'"),
        ({"activation_granularity": "token"}, "activation='static' takes activation_granularity 'tensor'"),
        (
            {"activation": "dynamic", "activation_granularity": "row"},
            "takes activation_granularity 'token' or 'tensor'",
        ),
        ({"activation": "none", "activation_granularity": "tensor"}, "takes activation_granularity None"),
        ({"activation": "none", "dataset": ["a"]}, "calibrates nothing: leave out dataset"),
        ({"activation": "none", "fallback": {"max_layers": 1}}, "leave out fallback"),
        ({"activation": "none", "alpha": 0.5, "symmetric": False}, "leave out alpha, symmetric"),
    ],
)
def test_combinations_that_make_no_sense(arguments, message):
    with pytest.raises(ValueError, match=message):
        SmoothQuantConfig(**arguments)


def test_symmetric_is_a_bool():
    with pytest.raises(TypeError, match="symmetric must be True or False"):
        SmoothQuantConfig(symmetric=1)


@pytest.mark.parametrize(
    "arguments", [{"symmetric": False}, {"activation": "none"}, {"activation": "dynamic", "symmetric": False}]
)
def test_compiled(tiny_bert, arguments):
    model = load(tiny_bert, **arguments)
    compiled = hf_smoothquant.compile(model)
    assert sqnr_db(logits(model), logits(compiled)) > 25
    assert compiled.fusion_coverage.unfused == []
    if arguments.get("activation") != "none" and not cpu.SATURATES:
        assert compiled.fusion_coverage.fused == 12
