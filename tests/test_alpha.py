import math

import pytest
import torch
from conftest import TEXTS
from torch import nn
from transformers import AutoModel

from hf_smoothquant import SmoothQuantConfig, quantization_report
from hf_smoothquant.calibration.observer import SAMPLE_ROWS, Group, RowSample
from hf_smoothquant.smoothing.alpha import (
    GRID,
    alpha_setting,
    column_absmax,
    group_sqnr_db,
    quantize_group,
    search_alpha,
)
from hf_smoothquant.smoothing.factors import smoothing_factors

CONFIG = SmoothQuantConfig()


def test_setting_by_pattern():
    alpha = {"output.dense": "auto", "re:layer\\.[01]\\.": 0.3}
    assert alpha_setting(alpha, ["layer.0.q", "layer.0.k"]) == 0.3
    assert alpha_setting(alpha, ["layer.1.output.dense"]) == "auto"
    assert alpha_setting(alpha, ["layer.2.q"]) == 0.85
    assert alpha_setting("auto", ["a"]) == "auto"


def group_of(rows):
    return Group(["a"], rows.amin(0), rows.amax(0), 2, rows)


def test_sqnr_of_a_known_error():
    """Rows that int8 holds exactly, a weight that it doesn't: 10 log10(y^2 / (y - y')^2) by hand."""
    weight = torch.tensor([[127.0, 0.4]])
    group = group_of(torch.tensor([[-127.0, -127.0], [127.0, 127.0]]))
    factors = smoothing_factors(group.absmax, column_absmax([weight]), 1.0)
    (int8,) = quantize_group([weight], group, factors, CONFIG)
    assert factors.tolist() == [127.0, 127.0]
    # Smoothed weight [127 * 127, 50.8], scale 127: q = [127, 0]; smoothed rows lie on the grid of 1 / 127.
    rows = torch.tensor([[127.0, 127.0]])
    y, y_int8 = 127 * 127 + 0.4 * 127, 127 * 127
    assert group_sqnr_db([weight], [int8], rows) == pytest.approx(20 * math.log10(y / (y - y_int8)), abs=0.01)


@pytest.mark.parametrize("activation", ["static", "dynamic"])
@pytest.mark.parametrize("outlier", [1, 30, 1000])
def test_search_is_never_worse_than_a_fixed_value(activation, outlier):
    config = SmoothQuantConfig(activation=activation)
    rows = torch.randn(100, 64)
    rows[:, 5] *= outlier
    weights = [nn.Linear(64, size).weight.detach() for size in (48, 16)]
    group = group_of(rows)

    def quality(alpha):
        factors = smoothing_factors(group.absmax, column_absmax(weights), alpha)
        return group_sqnr_db(weights, quantize_group(weights, group, factors, config), rows)

    found = search_alpha(weights, group, config)
    assert found in GRID and 0.5 in GRID
    assert quality(found) == max(quality(alpha) for alpha in GRID)


def test_auto_in_a_model(tiny_bert):
    def report(alpha):
        config = SmoothQuantConfig(dataset=TEXTS, alpha=alpha)
        return quantization_report(AutoModel.from_pretrained(tiny_bert, quantization_config=config))

    auto, half = report("auto"), report(0.5)
    assert [group.names for group in auto.groups] == [group.names for group in half.groups]
    assert len({group.alpha for group in auto.groups}) > 1
    assert all(one.sqnr_db >= other.sqnr_db - 1e-3 for one, other in zip(auto.groups, half.groups, strict=True))
    mixed = report({"attention.self": "auto", "intermediate": 0.4})
    assert {group.alpha for group in mixed.groups if "intermediate" in group.names[0]} == {0.4}
    assert {group.alpha for group in mixed.groups if "output.dense" in group.names[0]} == {0.85}


def test_useless_pattern_warns(tiny_bert, transformers_warnings):
    config = SmoothQuantConfig(dataset=TEXTS, alpha={"nothing": 0.4})
    AutoModel.from_pretrained(tiny_bert, quantization_config=config)
    assert "alpha: 'nothing' matches no Linear" in transformers_warnings.text


def test_row_sample_is_uniform_and_bounded():
    sample = RowSample()
    for start in range(0, 1000, 50):
        sample.add(torch.arange(start, start + 50.0).unsqueeze(1))
    values = sample.rows.flatten()
    assert len(values) == len(values.unique()) == SAMPLE_ROWS
    assert abs(values.mean() - 500) < 100 and values.min() < 100 and values.max() > 900
    few = RowSample()
    few.add(torch.ones(3, 2))
    assert few.rows.shape == (3, 2)
