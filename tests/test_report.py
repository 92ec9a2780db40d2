import json
import pickle

import pytest
import torch
from conftest import TEXTS
from transformers import AutoModel, AutoModelForQuestionAnswering, BertModel

import hf_smoothquant
from hf_smoothquant import SmoothQuantConfig, quantization_report
from hf_smoothquant.report import REPORT_NAME


@pytest.fixture
def model(tiny_bert):
    config = SmoothQuantConfig(dataset=TEXTS, alpha=0.5)
    return AutoModelForQuestionAnswering.from_pretrained(tiny_bert, quantization_config=config, dtype=torch.float32)


def test_values(model, tiny_bert):
    report = quantization_report(model)
    group = report.groups[0]
    assert [name.rsplit(".", 1)[1] for name in group.names] == ["query", "key", "value"]
    floats = AutoModelForQuestionAnswering.from_pretrained(tiny_bert, dtype=torch.float32)
    weights = [floats.get_submodule(name).weight for name in group.names]
    int8 = model.get_submodule(group.names[0]).weight
    assert group.w_absmax == max(weight.abs().max().item() for weight in weights)
    assert group.act_scale == int8.act_quant_scale.item()
    assert group.smoothed_x_absmax == pytest.approx(127 * group.act_scale, rel=1e-5)
    largest = max((weight.abs() / int8.act_pre_scale).max().item() for weight in weights)
    assert group.smoothed_w_absmax == pytest.approx(largest, rel=1e-5)
    assert 20 < group.sqnr_db < 60 and report.mean_sqnr_db > 20
    assert report.kept == {"qa_outputs": "fewer than 32 features"}


def test_table(model):
    lines = str(quantization_report(model)).splitlines()
    assert len(lines) == 1 + 8 + 1 and "SQNR dB" in lines[0]
    assert lines[1].startswith("bert.encoder.layer.0.attention.self.query") and " 3 " in lines[1]
    assert lines[-1] == "in float: qa_outputs (fewer than 32 features)"


def test_saved_beside_the_checkpoint_and_read_again(model, tmp_path):
    model.save_pretrained(tmp_path / "new" / "folder", max_shard_size="50KB")
    again = AutoModelForQuestionAnswering.from_pretrained(tmp_path / "new" / "folder")
    assert quantization_report(again) == quantization_report(model)
    assert json.loads((tmp_path / "new" / "folder" / REPORT_NAME).read_text())["groups"][0]["alpha"] == 0.5
    twin = pickle.loads(pickle.dumps(model))
    assert twin.save_pretrained.model is twin and quantization_report(twin) == quantization_report(model)
    hf_smoothquant.compile(model).save_pretrained(tmp_path / "compiled")
    assert (tmp_path / "compiled" / REPORT_NAME).exists()


def test_no_report_stays_beside_float_weights(model, tmp_path):
    model.save_pretrained(tmp_path)
    model.dequantize().save_pretrained(tmp_path)
    assert not (tmp_path / REPORT_NAME).exists()
    assert type(AutoModelForQuestionAnswering.from_pretrained(tmp_path).qa_outputs) is torch.nn.Linear


def test_no_report(model, tiny_bert, tmp_path):
    model.save_pretrained(tmp_path)
    (tmp_path / REPORT_NAME).unlink()
    for other in (AutoModel.from_pretrained(tmp_path), AutoModel.from_pretrained(tiny_bert), torch.nn.Linear(2, 2)):
        with pytest.raises(ValueError, match="has no quantization report"):
            quantization_report(other)


def test_a_zero_layer_has_a_ratio_that_json_can_hold(tiny_config, save_tiny):
    floats = BertModel(tiny_config)
    torch.nn.init.zeros_(floats.encoder.layer[0].output.dense.weight)
    config = SmoothQuantConfig(dataset=TEXTS)
    report = quantization_report(AutoModel.from_pretrained(save_tiny(floats), quantization_config=config))
    (zero,) = (group for group in report.groups if group.names == ["encoder.layer.0.output.dense"])
    assert zero.w_absmax == 0 and abs(zero.sqnr_db) <= 200
    json.dumps([group.sqnr_db for group in report.groups], allow_nan=False)
