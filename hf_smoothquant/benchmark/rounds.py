"""Alternating turns: whatever slows the machine for a while slows every variant."""

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from hf_smoothquant.benchmark.statistics import Turn


class Runner(Protocol):
    """What takes turns: a `WorkerProcess`."""

    def ask(self, *, run: Sequence[int]) -> Mapping[str, Sequence[float]]: ...


def alternate(
    runners: Mapping[str, Runner], num_requests: int, rounds: int, seconds_per_turn: float, warmup: int = 1
) -> dict[str, list[Turn]]:
    """Lets the runners run their requests in turns: A B C, C B A, A B C, ...

    Every second round goes backwards, so that a steady drift of the machine's speed cancels, too. Each turn starts with
    untimed runs: the one before has filled the caches with its own weights.

    Args:
        runners (`Mapping[str, Runner]`): by name.
        num_requests (`int`): a turn runs all of them, as often as fits into `seconds_per_turn` and at least once; a
            single one at least 3 times.
        rounds (`int`): turns of each runner.
        seconds_per_turn (`float`): about how long a turn takes.
        warmup (`int`, *optional*, defaults to 1): untimed runs of a turn.

    Returns:
        The turns of each runner, `rounds` each.
    """
    everything = list(range(num_requests))
    repeats = {}
    for name, runner in runners.items():
        runner.ask(run=everything)  # compiles what isn't yet
        seconds = runner.ask(run=everything)["seconds"]
        repeats[name] = max(3 if num_requests == 1 else 1, math.floor(seconds_per_turn / np.sum(seconds)))
    turns: dict[str, list[Turn]] = {name: [] for name in runners}
    for index in range(rounds):
        for name in list(runners)[:: 1 if index % 2 == 0 else -1]:
            warm = [everything[i % num_requests] for i in range(warmup)]
            answer = runners[name].ask(run=warm + everything * repeats[name])
            turns[name].append(Turn(tuple(answer["seconds"][warmup:]), tuple(answer["cpu_seconds"][warmup:])))
    return turns
