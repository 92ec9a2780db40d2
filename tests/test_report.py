import json
import pickle
import sys
from dataclasses import asdict

import pytest
import torch
from conftest import TEXTS
from transformers import AutoModel, AutoModelForQuestionAnswering, BertModel

import hf_smoothquant
from hf_smoothquant import SmoothQuantConfig, plots, quantization_report
from hf_smoothquant.report import (
    REPORT_NAME,
    WITH_CHANNELS,
    ChannelMaxima,
    GroupReport,
    QuantizationReport,
)


@pytest.fixture
def model(tiny_bert):
    config = SmoothQuantConfig(dataset=TEXTS, alpha=0.5, fold=False)  # all factors are stored
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


def test_channels_of_the_worst_groups(model, tiny_bert, tmp_path):
    """Before smoothing those of the float weights, after it divided and multiplied by the stored factors."""
    report = quantization_report(model)
    kept = [group for group in report.groups if group.channels is not None]
    assert len(kept) == WITH_CHANNELS < len(report.groups)
    assert max(group.sqnr_db for group in kept) <= min(g.sqnr_db for g in report.groups if g.channels is None)
    floats = AutoModelForQuestionAnswering.from_pretrained(tiny_bert, dtype=torch.float32)
    for group in kept:
        columns = torch.stack([floats.get_submodule(name).weight.abs().amax(0) for name in group.names]).amax(0)
        inverse = model.get_submodule(group.names[0]).weight.act_pre_scale
        x, w, smoothed_x, smoothed_w = map(torch.tensor, asdict(group.channels).values())
        torch.testing.assert_close(w, columns, rtol=1e-3, atol=0)
        torch.testing.assert_close(smoothed_x, x * inverse, rtol=1e-3, atol=0)
        torch.testing.assert_close(smoothed_w, columns / inverse, rtol=1e-3, atol=0)
        assert x.max().item() == pytest.approx(group.x_absmax, rel=1e-3)
    model.save_pretrained(tmp_path)
    assert len((tmp_path / REPORT_NAME).read_text().splitlines()) < 400  # a line per list, not per number
    assert QuantizationReport.load(tmp_path) == report


def test_plots(model, tmp_path):
    pytest.importorskip("matplotlib")
    report = quantization_report(model)
    files = report.plot(tmp_path / "plots") + report.plot(tmp_path / "new" / "all.svg")
    assert [file.name for file in files] == ["channels.png", "sqnr.png", "all.svg"]
    assert all(file.stat().st_size > 5000 for file in files)
    for group in report.groups:
        group.channels = None  # the report of an older checkpoint
    assert [file.name for file in report.plot(tmp_path / "old")] == ["sqnr.png"]


def test_pictures_show_the_numbers(model):
    figure_module = pytest.importorskip("matplotlib.figure")
    report = quantization_report(model)
    worst, figure = report.worst(2), figure_module.Figure()
    plots.draw_channels(figure, worst)
    axes = figure.get_axes()
    assert len(axes) == 4 and axes[0].get_title("left") == plots.title(worst[0].names)
    before, after = (line.get_ydata().tolist() for line in axes[0].lines)
    assert before == sorted(worst[0].channels.x, reverse=True) and sorted(after) == sorted(worst[0].channels.smoothed_x)
    bars = figure_module.Figure()
    plots.draw_sqnr(bars, report.groups, set())
    (ax,) = bars.get_axes()
    assert [bar.get_width() for bar in ax.patches] == [group.sqnr_db for group in report.groups]
    assert ax.get_yticklabels()[0].get_text() == "bert.encoder.layer.0.attention.self.{query, key, value}"


def test_axes_are_logarithmic_where_the_range_needs_it():
    figure_module = pytest.importorskip("matplotlib.figure")
    near, far = [1.0, 2.0, 0.0], [1000.0, 2.0, 0.0]
    for x, scale in ((near, "linear"), (far, "log")):
        group = GroupReport(["a"], 0.5, 1, 1, 1, 1, None, 30.0, channels=ChannelMaxima(x, near, near, near))
        figure = figure_module.Figure()
        plots.draw_channels(figure, [group])
        assert [ax.get_yscale() for ax in figure.get_axes()] == [scale, "linear"]


def test_titles():
    assert plots.title(["a.b.q"]) == "a.b.q"
    assert plots.title(["a.b.q", "a.b.k"]) == "a.b.{q, k}"
    assert plots.title(["a.0.k", "a.1.k"]) == "a.{0.k, 1.k}"
    assert plots.title(["q", "k"]) == "{q, k}"


def test_missing_matplotlib_says_how_to_install_it(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        quantization_report(model).plot(tmp_path)
