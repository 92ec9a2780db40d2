import pytest
import torch

from hf_smoothquant.smoothing.factors import MAX_FACTOR, MIN_FACTOR, activation_scale, smoothing_factors


def test_worked_value():
    """max|X| = 100, max|W| = 0.1, alpha = 0.5: s = 31.62, both smoothed maxima 3.162."""
    s = smoothing_factors(torch.tensor([100.0]), torch.tensor([0.1]), 0.5)
    assert s.item() == pytest.approx(31.6228, rel=1e-5)
    assert 100 / s.item() == pytest.approx(3.16228, rel=1e-5)
    assert 0.1 * s.item() == pytest.approx(3.16228, rel=1e-5)


@pytest.mark.parametrize(("alpha", "expected"), [(0.0, 1 / 0.1), (1.0, 100.0), (0.75, 100**0.75 / 0.1**0.25)])
def test_alpha_moves_the_load(alpha, expected):
    s = smoothing_factors(torch.tensor([100.0]), torch.tensor([0.1]), alpha)
    assert s.item() == pytest.approx(expected, rel=1e-5)


def test_dead_channels_keep_factor_one():
    s = smoothing_factors(torch.tensor([0.0, 5.0, 0.0, 4.0]), torch.tensor([2.0, 0.0, 0.0, 1.0]), 0.5)
    assert s.tolist() == [1, 1, 1, 2]


def test_factors_are_clamped():
    s = smoothing_factors(torch.tensor([1e12, 1e-12]), torch.tensor([1e-12, 1e12]), 0.5)
    assert s.tolist() == pytest.approx([MAX_FACTOR, MIN_FACTOR])


def test_half_precision_statistics_are_raised_to_float32():
    x, w = torch.tensor([100.0], dtype=torch.bfloat16), torch.tensor([0.1], dtype=torch.float16)
    assert smoothing_factors(x, w, 0.5).dtype == torch.float32
    assert activation_scale(x, torch.ones(1)).dtype == torch.float32


def test_activation_scale_is_that_of_the_smoothed_data():
    x = torch.randn(500, 16) * torch.logspace(-2, 2, 16)
    s = smoothing_factors(x.abs().amax(0), torch.rand(16) + 0.1, 0.5)
    assert activation_scale(x.abs().amax(0), s).item() == pytest.approx(((x / s).abs().max() / 127).item(), rel=1e-6)


def test_activation_scale_of_silence_is_positive():
    assert activation_scale(torch.zeros(4), torch.ones(4)) > 0
