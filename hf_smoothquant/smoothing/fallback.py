"""A budget for accuracy: which groups are left in dynamic int8 or in float, so that the model's output error holds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torchao.quantization import Int8Tensor
from transformers.utils import logging

from hf_smoothquant.progress import progress
from hf_smoothquant.smoothing.sensitivity import Sensitivity, noise_to_db

logger = logging.get_logger(__name__)

FLOAT = "float"
LADDER = ("static", "dynamic", FLOAT)


@dataclass
class FallbackPlan:
    """How each group is to compute.

    Attributes:
        activations (`list[str]`): of each group: `"static"`, `"dynamic"` or `"float"`.
        group_sqnr_db (`list[float]` or `None`): of each group: SQNR of the model's outputs with that group alone in
            int8 as first configured. `None` where the budget held at once.
        output_sqnr_db (`float`): SQNR of the model's outputs with all groups as planned.
    """

    activations: list[str]
    group_sqnr_db: list[float] | None
    output_sqnr_db: float


def plan_fallback(
    sensitivity: Sensitivity,
    quantize: Callable[[int, str], Mapping[nn.Module, Int8Tensor]],
    sizes: Sequence[int],
    activation: str,
    budget: Mapping[str, Any],
) -> FallbackPlan:
    """Moves the groups that disturb the model's outputs most from static to dynamic or to float, until `budget` holds.

    The error of each group is measured with it alone in int8. The group with the largest goes to dynamic where that at
    least halves its error, else to float, until the sum of the errors promises `min_sqnr_db`; then the whole is
    measured, and where the promise was too good, the target of the sum is lowered in proportion. That takes a pass
    over the samples per group, and a few more.

    Args:
        sensitivity (`Sensitivity`): measures the output error.
        quantize (`Callable`): for a group's index and an activation: the int8 weights of its Linears.
        sizes (`Sequence[int]`): number of Linears in each group.
        activation (`str`): what all groups start with.
        budget (`Mapping`): `SmoothQuantConfig.fallback`.

    Raises:
        `ValueError`: nothing would be left in int8.
    """
    goal = 10 ** (-budget["min_sqnr_db"] / 10) if "min_sqnr_db" in budget else 0.0
    layers_left = budget.get("max_layers", sum(sizes))
    rungs = (activation, budget["to"]) if budget.get("to") else LADDER
    activations = [activation] * len(sizes)
    weights = [quantize(index, activation) for index in range(len(sizes))]

    def measure() -> float:
        return sensitivity.noise({module: weight for group in weights for module, weight in group.items()})

    actual = measure()
    if actual <= goal:
        return FallbackPlan(activations, None, noise_to_db(actual))
    noise = [sensitivity.noise(group) for group in progress(weights, "Measuring sensitivity", "group")]
    alone = [noise_to_db(value) for value in noise]

    def next_worst() -> int | None:
        def may_move(index):
            # Without a goal every move would go all the way to float: one step is enough then.
            fits = sizes[index] <= layers_left if activations[index] == activation else goal > 0
            return activations[index] != rungs[-1] and noise[index] > 0 and fits

        return max(filter(may_move, range(len(sizes))), key=noise.__getitem__, default=None)

    def move(index: int) -> None:
        nonlocal layers_left
        layers_left -= sizes[index] if activations[index] == activation else 0
        below = rungs[rungs.index(activations[index]) + 1]
        if below != FLOAT:
            milder = quantize(index, below)
            less = sensitivity.noise(milder)
            if less <= noise[index] / 2 or rungs[-1] != FLOAT:
                activations[index], weights[index], noise[index] = below, milder, less
                return
        activations[index], weights[index], noise[index] = FLOAT, {}, 0.0

    while actual > goal and (worst := next_worst()) is not None:
        target = goal * sum(noise) / actual
        while worst is not None and sum(noise) > target:
            move(worst)
            worst = next_worst()
        actual = measure()
    if all(kind == FLOAT for kind in activations):
        raise ValueError(
            f"fallback={dict(budget)} leaves no layer in int8: no int8 model comes that close to the float one. Ask "
            "for a lower min_sqnr_db."
        )
    if "min_sqnr_db" in budget and actual > goal:
        logger.warning(
            f"fallback: min_sqnr_db={budget['min_sqnr_db']} isn't reached within {dict(budget)}: the outputs have "
            f"{noise_to_db(actual):.1f} dB. Allow more layers, or float instead of dynamic."
        )
    return FallbackPlan(activations, alone, noise_to_db(actual))
