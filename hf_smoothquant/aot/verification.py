"""Does a package give what the model gives? Measured on the example and at the ends of the ranges."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hf_smoothquant.aot.signature import BATCH, Signature
from hf_smoothquant.hints import eager_on_purpose
from hf_smoothquant.smoothing.outputs import output_tensors

EQUAL_DB = 200.0
WINDOWS = 8  # of smallest inputs: a single token's few outputs say little


@dataclass
class Reference:
    """Inputs of one size with the eager model's outputs.

    Attributes:
        sizes (`str`): e.g. `"batch 1, length 128"`.
        inputs (`list[dict[str, torch.Tensor]]`): one or several calls.
        outputs (`list`): what the model returned for each.
    """

    sizes: str
    inputs: list[dict[str, torch.Tensor]]
    outputs: list[Any]

    def sqnr_db(self, function: Callable[..., Any]) -> float:
        """The smallest SQNR of the floating-point outputs of `function`, each taken over all calls.

        200 if an output is equal, -200 if it is not finite.
        """
        pairs = [
            zip(output_tensors(reference), output_tensors(function(**inputs)), strict=True)
            for inputs, reference in zip(self.inputs, self.outputs, strict=True)
        ]
        ratios = []
        for calls in zip(*pairs, strict=True):
            if calls[0][0].is_floating_point():
                signal = sum(reference.double().square().sum() for reference, _ in calls)
                noise = sum((reference.double() - value.double()).square().sum() for reference, value in calls)
                decibels = EQUAL_DB if noise == 0 else 10 * torch.log10(signal / noise).nan_to_num(-EQUAL_DB).item()
                ratios.append(min(max(decibels, -EQUAL_DB), EQUAL_DB))
        return round(min(ratios, default=EQUAL_DB), 1)


def eager_references(
    model: nn.Module, examples: Mapping[str, torch.Tensor], signature: Signature, autocast: torch.dtype | None
) -> list[Reference]:
    """The eager model's outputs on the example and, with the smallest batch, at both ends of the other ranges.

    Raises:
        `ValueError`: the model can't take such sizes.
    """
    smallest = {axis: low for axis, (low, _) in signature.ranges.items()}
    largest = {axis: high for axis, (_, high) in signature.ranges.items() if axis != BATCH}
    calls = {}
    for sizes, count in ((signature.sizes_of(examples), 1), (smallest | largest, 1), (smallest, WINDOWS)):
        name = ", ".join(f"{axis} {size}" for axis, size in sizes.items()) or "fixed sizes"
        calls.setdefault(name, [signature.resized(examples, sizes, start) for start in range(count)])
    references = []
    for name, inputs in calls.items():
        try:
            with eager_on_purpose(), torch.autocast("cpu", autocast, enabled=autocast is not None):
                references.append(Reference(name, inputs, [model(**call) for call in inputs]))
        except (RuntimeError, IndexError, ValueError) as error:
            raise ValueError(
                f"The model itself fails on inputs of {name}: {error}. Give dynamic={{...}} with ranges it can take."
            ) from error
    return references
