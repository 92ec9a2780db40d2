import numpy as np
import pytest

from hf_smoothquant.evaluation.bootstrap import paired_difference


def test_equal_scores_have_no_difference():
    scores = np.array([0.0, 100.0, 100.0])
    difference = paired_difference(scores, scores)
    assert (difference.mean, difference.low, difference.high) == (0, 0, 0)


def test_interval_is_the_normal_one_for_many_examples():
    """For n large the percentile interval is mean ± 1.96 sd / sqrt(n) of the differences."""
    generator = np.random.default_rng(1)
    baseline = 100.0 * (generator.random(4000) < 0.8)
    scores = np.where(generator.random(4000) < 0.1, 100 - baseline, baseline)
    expected = scores - baseline
    margin = 1.96 * expected.std() / np.sqrt(len(expected))
    difference = paired_difference(baseline, scores)
    assert difference.mean == pytest.approx(expected.mean())
    assert difference.low == pytest.approx(expected.mean() - margin, abs=0.05)
    assert difference.high == pytest.approx(expected.mean() + margin, abs=0.05)


def test_pairing_narrows_the_interval():
    baseline = np.tile([0.0, 100.0], 500)
    better = baseline.copy()
    better[0] = 100.0
    difference = paired_difference(baseline, better)
    assert difference.mean == pytest.approx(0.1)
    assert difference.low >= 0 and difference.high < 0.5  # the means themselves are known to ± 3 only


def test_other_lengths_are_refused():
    with pytest.raises(ValueError, match="two scores for each example"):
        paired_difference(np.zeros(3), np.zeros(4))
