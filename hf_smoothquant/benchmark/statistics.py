"""From latencies of alternating turns to medians, percentiles and ratios."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Turn:
    """What one worker measured in one turn.

    Attributes:
        seconds (`tuple[float, ...]`): wall time of each request.
        cpu_seconds (`tuple[float, ...]`): time of all threads on a core, of each request.
    """

    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]


@dataclass(frozen=True)
class Latency:
    """Summary of all requests of one variant, in milliseconds.

    Attributes:
        median, mean, p10, p90, p99, minimum (`float`): of the wall time.
        requests (`int`): how many.
        busy (`float`): CPU time / (wall time * threads). With one thread, clearly below 1 means that other processes
            took the core away.
    """

    median: float
    mean: float
    p10: float
    p90: float
    p99: float
    minimum: float
    requests: int
    busy: float

    @classmethod
    def of(cls, turns: Sequence[Turn], threads: int) -> "Latency":
        """The summary of one variant's turns."""
        seconds = np.concatenate([turn.seconds for turn in turns])
        cpu_seconds = sum(sum(turn.cpu_seconds) for turn in turns)
        p10, median, p90, p99 = 1e3 * np.percentile(seconds, [10, 50, 90, 99])
        return cls(
            median=float(median),
            mean=float(1e3 * seconds.mean()),
            p10=float(p10),
            p90=float(p90),
            p99=float(p99),
            minimum=float(1e3 * seconds.min()),
            requests=len(seconds),
            busy=float(cpu_seconds / (seconds.sum() * threads)),
        )


@dataclass(frozen=True)
class Ratio:
    """How many times faster a variant is than another, from turns taken next to each other.

    Attributes:
        median, low, high (`float`): over the rounds: the median, and the quartiles.
    """

    median: float
    low: float
    high: float


def speedup(baseline: Sequence[Turn], turns: Sequence[Turn], varies: bool = False) -> Ratio:
    """The ratio of times round by round: a slow spell of the machine that lasts a round cancels.

    Args:
        baseline, turns (`Sequence[Turn]`): of two variants, one a round each.
        varies (`bool`, *optional*, defaults to `False`): requests differ in length and each turn ran all of them: the
            means are compared. Otherwise the medians, of however many runs of the one request.
    """
    typical = np.mean if varies else np.median
    ratios = [typical(a.seconds) / typical(b.seconds) for a, b in zip(baseline, turns, strict=True)]
    low, median, high = np.percentile(ratios, [25, 50, 75])
    return Ratio(float(median), float(low), float(high))
