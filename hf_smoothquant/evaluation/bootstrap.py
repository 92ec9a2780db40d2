"""Confidence intervals of differences between two models that answered the same examples."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Difference:
    """A mean difference per example with its 95 % confidence interval, in the scores' unit."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


def paired_difference(
    baseline: np.ndarray, scores: np.ndarray, resamples: int = 10_000, confidence: float = 0.95, seed: int = 0
) -> Difference:
    """Mean of `scores - baseline` with a percentile bootstrap interval over examples (Efron & Tibshirani 1993, ch. 13).

    Both models answered the same examples, so that the pairs are resampled: most answers agree, and the interval is
    far narrower than those of the two means.

    Args:
        baseline, scores (`np.ndarray`): `[examples]`, one score per example, in the same order.
        resamples (`int`, *optional*, defaults to 10,000): bootstrap samples.
        confidence (`float`, *optional*, defaults to 0.95): coverage of the interval.
        seed (`int`, *optional*, defaults to 0): of the resampling.

    Raises:
        `ValueError`: the two have different shapes, or no example.
    """
    if baseline.shape != scores.shape or baseline.ndim != 1 or not len(baseline):
        raise ValueError(f"Needs two scores for each example, got {baseline.shape} and {scores.shape}.")
    differences = np.asarray(scores, dtype=np.float64) - np.asarray(baseline, dtype=np.float64)
    # How often each distinct difference is drawn is all that matters; there are few, since most are 0, 1 or -1.
    values, counts = np.unique(differences, return_counts=True)
    draws = np.random.default_rng(seed).multinomial(len(differences), counts / counts.sum(), size=resamples)
    means = draws @ values / len(differences)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Difference(float(differences.mean()), float(low), float(high))
