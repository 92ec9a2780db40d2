import re
from types import SimpleNamespace

import pytest
import torch
from conftest import TEXTS, logits, sqnr_db
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForQuestionAnswering, BertForQuestionAnswering

from hf_smoothquant import SmoothQuantConfig, quantization_report
from hf_smoothquant.linear import Int8Linear
from hf_smoothquant.smoothing.fallback import plan_fallback

# Noise of four groups, of 3, 1, 1 and 2 Linears, as static and as dynamic int8.
NOISE = {"static": (1e-3, 1e-2, 4e-3, 1e-4), "dynamic": (1e-4, 9e-3, 1e-4, 5e-5)}
SIZES = (3, 1, 1, 2)


def plan(budget, activation="static", correlation=1.0):
    """Plans with noise that adds up, `correlation` times over where several groups are in int8."""

    def noise(weights):
        return sum(weights.values()) * (correlation if len(weights) > 1 else 1)

    def quantize(index, activation):
        return {index: NOISE[activation][index]}

    return plan_fallback(SimpleNamespace(noise=noise), quantize, SIZES, activation, budget)


@pytest.mark.parametrize(
    ("budget", "activations", "noise"),
    [
        ({"min_sqnr_db": 18}, ["static"] * 4, 0.0151),  # 0.0151 is 18.2 dB
        # 0.0151 > 0.01: the second goes to float, since dynamic wouldn't halve its noise; 0.0051 is left.
        ({"min_sqnr_db": 20}, ["static", "float", "static", "static"], 0.0051),
        # 0.001 allowed: the third goes to dynamic and leaves 0.0012, the first too and leaves 0.0003.
        ({"min_sqnr_db": 30}, ["dynamic", "float", "dynamic", "static"], 0.0003),
        ({"max_layers": 1}, ["static", "float", "static", "static"], 0.0051),
        ({"max_layers": 4}, ["static", "float", "dynamic", "dynamic"], 0.00115),  # the first has 3 Linears: too many
        ({"max_layers": 5}, ["dynamic", "float", "dynamic", "static"], 0.0003),
        ({"min_sqnr_db": 30, "max_layers": 1}, ["static", "float", "static", "static"], 0.0051),
        ({"min_sqnr_db": 30, "to": "float"}, ["float", "float", "float", "static"], 0.0001),
        ({"max_layers": 2, "to": "dynamic"}, ["static", "dynamic", "dynamic", "static"], 0.0102),
    ],
)
def test_plan(budget, activations, noise):
    planned = plan(budget)
    assert planned.activations == activations
    assert 10 ** (-planned.output_sqnr_db / 10) == pytest.approx(noise)
    alone = None if budget == {"min_sqnr_db": 18} else pytest.approx([30, 20, 23.979, 40], abs=1e-3)
    assert planned.group_sqnr_db == alone


def test_the_whole_is_measured_and_not_only_the_sum():
    # The sum says 0.0051 for the second in float, the measure 0.0102: the next has to go, too.
    planned = plan({"min_sqnr_db": 20}, correlation=2)
    assert planned.activations == ["static", "float", "dynamic", "static"]
    assert 10 ** (-planned.output_sqnr_db / 10) == pytest.approx(2 * 0.0012)


def test_dynamic_falls_back_to_float():
    assert plan({"min_sqnr_db": 25}, "dynamic").activations == ["dynamic", "float", "dynamic", "dynamic"]


def test_a_goal_out_of_reach(transformers_warnings):
    assert plan({"min_sqnr_db": 60, "max_layers": 2}).activations == ["static", "float", "float", "static"]
    assert "min_sqnr_db=60 isn't reached" in transformers_warnings.text
    with pytest.raises(ValueError, match=r"leaves no layer in int8.*lower min_sqnr_db"):
        plan({"min_sqnr_db": 60})


BAD = "bert.encoder.layer.1.output.dense"


@pytest.fixture(scope="module")
def with_outliers(tiny_config, save_tiny):
    """A model with one Linear whose input has an outlier of 500, which alpha=0 leaves there (cases 33 and 34)."""
    torch.manual_seed(0)
    model = BertForQuestionAnswering(tiny_config)
    with torch.no_grad():
        model.bert.encoder.layer[1].intermediate.dense.bias[3] = 500
        model.get_submodule(BAD).bias -= 500 * model.get_submodule(BAD).weight[:, 3]
    return save_tiny(model)


def quantize(folder, **arguments):
    config = SmoothQuantConfig(**{"alpha": 0.0, "dataset": TEXTS * 2} | arguments)
    return AutoModelForQuestionAnswering.from_pretrained(folder, quantization_config=config, dtype=torch.float32)


def test_the_layer_with_giant_outliers_is_reported_and_left_in_float(with_outliers):
    without = quantize(with_outliers)
    worst = min(quantization_report(without).groups, key=lambda group: group.sqnr_db)
    assert worst.names == [BAD] and worst.smoothed_x_absmax > 100
    model = quantize(with_outliers, fallback={"min_sqnr_db": 20})
    report = quantization_report(model)
    assert report.kept[BAD].startswith("fallback") and report.output_sqnr_db >= 20
    assert type(model.get_submodule(BAD)) is torch.nn.Linear
    assert isinstance(model.get_submodule(BAD.replace("output", "intermediate")), Int8Linear)
    reference = logits(AutoModelForQuestionAnswering.from_pretrained(with_outliers, dtype=torch.float32))
    assert sqnr_db(reference, logits(model)) > max(18, sqnr_db(reference, logits(without)) + 5)


def test_static_dynamic_and_float_in_one_checkpoint(with_outliers, tmp_path):
    model = quantize(with_outliers, fallback={"min_sqnr_db": 38})
    report = quantization_report(model)
    kinds = {group.activation for group in report.groups}
    assert kinds == {"static", "dynamic"} and any(why.startswith("fallback") for why in report.kept.values())
    for group in report.groups:
        assert (model.get_submodule(group.names[0]).weight.act_quant_scale is None) == (group.activation == "dynamic")
    assert "output dB" in str(report) and f"held-out samples: {report.output_sqnr_db:.1f} dB" in str(report)
    model.save_pretrained(tmp_path)
    again = AutoModelForQuestionAnswering.from_pretrained(tmp_path)
    assert torch.equal(logits(again), logits(model)) and quantization_report(again) == report
    assert again.config.quantization_config.fallback == {"min_sqnr_db": 38}
    file = tmp_path / "model.safetensors"
    with safe_open(file, framework="pt") as opened:
        metadata = opened.metadata()
    tensors = load_file(file)
    lost = next(name for name in tensors if name.endswith("act_quant_scale"))
    del tensors[lost]
    save_file(tensors, file, metadata)
    with pytest.raises(ValueError, match=re.escape(lost)):
        AutoModelForQuestionAnswering.from_pretrained(tmp_path)


def test_nothing_changes_where_the_budget_holds(tiny_bert):
    plain = quantize(tiny_bert, alpha=0.85, dataset=sorted(TEXTS, key=len)[:7])  # batches come by length
    report = quantization_report(quantize(tiny_bert, alpha=0.85, dataset=TEXTS, fallback={"min_sqnr_db": 5}))
    assert report.output_sqnr_db > 20 and not any(why.startswith("fallback") for why in report.kept.values())
    scales = [group.act_scale for group in quantization_report(plain).groups]
    assert [group.act_scale for group in report.groups] == pytest.approx(scales, rel=1e-5)  # BLAS may round differently


def test_too_few_samples_to_hold_any_out(tiny_bert):
    with pytest.raises(ValueError, match=r"every 8th calibration sample, and there were only 3"):
        quantize(tiny_bert, dataset=TEXTS[:3], fallback={"min_sqnr_db": 20})
