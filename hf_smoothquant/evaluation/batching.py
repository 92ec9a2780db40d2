"""Encoded inputs of different lengths through a model, in batches with little padding."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch


@torch.no_grad()
def logits_of(
    model: torch.nn.Module,
    tokenizer: Any,
    inputs: Sequence[dict[str, list[int]]],
    names: Sequence[str],
    batch_size: int = 16,
) -> list[tuple[np.ndarray, ...]]:
    """The named outputs for each of `inputs`, which are batched by length and padded per batch.

    Args:
        model (`nn.Module`): returns a `ModelOutput` that has `names`.
        tokenizer: pads.
        inputs (`Sequence[dict[str, list[int]]]`): `input_ids`, ... of one sequence each.
        names (`Sequence[str]`): attributes of the model's output, `[batch, ...]` each.
        batch_size (`int`): sequences in a batch.

    Returns:
        One tuple for each of `inputs`, in their order: float32 arrays without the batch's dimension.
    """
    order = sorted(range(len(inputs)), key=lambda index: -len(inputs[index]["input_ids"]))
    results: list[tuple[np.ndarray, ...]] = [()] * len(inputs)
    for first in range(0, len(order), batch_size):
        chosen = order[first : first + batch_size]
        batch = tokenizer.pad([inputs[index] for index in chosen], padding=True, return_tensors="pt")
        output = model(**batch)
        arrays = [getattr(output, name).float().numpy() for name in names]
        for index, row in zip(chosen, zip(*arrays, strict=True), strict=True):
            results[index] = row
    return results
