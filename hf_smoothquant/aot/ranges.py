"""The range of sizes that a package is made for."""

from collections.abc import Mapping

import torch
from torch import nn

from hf_smoothquant.aot.signature import BATCH, DECODER_LENGTH, LENGTH, axis_name

MAX_BATCH = 128  # a larger one costs nothing but the check; it is a bound on memory for the service that takes requests
MAX_LENGTH = 512  # of models whose positions have no end


def size_ranges(
    model: nn.Module, examples: Mapping[str, torch.Tensor], dynamic: bool | Mapping[str, tuple[int, int]] | None
) -> dict[str, tuple[int, int]]:
    """The ranges that `export(dynamic=...)` asks for.

    Returns:
        `dict[str, tuple[int, int]]`: by name of the dimension (see `Signature`). For `None` and `True`: a batch of 1 to
        128 and, for token ids, a length of 1 to what the model has positions for.

    Raises:
        `ValueError`: a range isn't two whole numbers, the first at least 1 and the second not below it.
    """
    if isinstance(dynamic, Mapping):
        for axis, bounds in dynamic.items():
            pair = isinstance(bounds, (tuple, list)) and len(bounds) == 2 and all(type(b) is int for b in bounds)
            if not pair or not 1 <= bounds[0] <= bounds[1]:
                raise ValueError(
                    f"dynamic[{axis!r}] must be two whole numbers, smallest and largest, from 1 on: {bounds!r}."
                )
        # A range of one size is a fixed one.
        return {axis: tuple(bounds) for axis, bounds in dynamic.items() if bounds[0] < bounds[1]}
    if dynamic is False:
        return {}
    axes = {axis_name(name, dim, x.ndim) for name, x in examples.items() for dim in range(x.ndim)}
    ranges = {BATCH: (1, MAX_BATCH)}
    for axis, ids in ((LENGTH, "input_ids"), (DECODER_LENGTH, "decoder_input_ids")):
        if axis in axes and ids in examples:
            ranges[axis] = (1, max(max_length(model), examples[ids].shape[1]))
    return ranges


def max_length(model: nn.Module) -> int:
    """The largest number of tokens that the model has positions for; 512 if there is no end to them.

    RoBERTa's positions begin behind that of the padding token, so that there are fewer than the table has rows.
    """
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None) or MAX_LENGTH
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return positions - module.padding_idx - 1
    return positions
