"""What an exported model takes: names, dtypes and shapes of its inputs, and the sizes that may vary."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

BATCH, LENGTH, DECODER_LENGTH = "batch", "length", "decoder_length"


@dataclass(frozen=True)
class InputSpec:
    """One input tensor.

    Attributes:
        name (`str`): keyword of the model's `forward`.
        dtype (`str`): e.g. `"int64"`.
        shape (`tuple`): a number per fixed dimension, a name per dimension that varies.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class Signature:
    """All inputs of an exported model.

    Dimension 0 of each input is the `"batch"`, dimension 1 of `[batch, length]` inputs and of `inputs_embeds` the
    `"length"`; that of the decoder's inputs (named `decoder_...`) is the `"decoder_length"`.

    Attributes:
        inputs (`tuple[InputSpec, ...]`): in the order of the example.
        ranges (`dict[str, tuple[int, int]]`): smallest and largest size of each dimension that varies, both included.
    """

    inputs: tuple[InputSpec, ...]
    ranges: dict[str, tuple[int, int]]

    @classmethod
    def of(cls, examples: Mapping[str, torch.Tensor], ranges: Mapping[str, tuple[int, int]]) -> "Signature":
        """The signature that `examples` have when the dimensions named in `ranges` vary.

        Raises:
            `ValueError`: an example isn't a tensor, a dimension has two sizes or one outside its range, or no input has
                a dimension of that name.
        """
        specs = []
        for name, tensor in examples.items():
            if not isinstance(tensor, torch.Tensor):
                raise ValueError(f"The example of {name} is a {type(tensor).__name__}, and must be a tensor.")
            axes = (axis_name(name, dim, tensor.ndim) for dim in range(tensor.ndim))
            shape = (axis if axis in ranges else size for axis, size in zip(axes, tensor.shape, strict=True))
            specs.append(InputSpec(name, str(tensor.dtype).removeprefix("torch."), tuple(shape)))
        used = {axis for spec in specs for axis in spec.shape}
        for axis in ranges:
            if axis not in used:
                raise ValueError(f"None of the inputs {', '.join(examples)} has a dimension {axis!r}.")
        signature = cls(tuple(specs), {axis: (int(low), int(high)) for axis, (low, high) in ranges.items()})
        signature.check(examples)
        return signature

    def check(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """The inputs as contiguous tensors: compiled code reads them with the strides of the example.

        Raises:
            `ValueError`: an input is unknown, missing, no CPU tensor, or of another dtype or shape.
        """
        names = [spec.name for spec in self.inputs]
        unknown = [name for name in inputs if name not in names]
        missing = [name for name in names if inputs.get(name) is None]
        if unknown or missing:
            wrong = [f"{name} is not among them" for name in unknown] + [f"{name} is missing" for name in missing]
            raise ValueError(
                f"The package was exported for the inputs {', '.join(names)}: {', '.join(wrong)}. Pass exactly these, "
                "or export again with the example_inputs you want."
            )
        sizes: dict[str, tuple[int, str]] = {}
        for spec in self.inputs:
            self._check_one(spec, inputs[spec.name], sizes)
        return {name: inputs[name].detach().contiguous() for name in names}

    def _check_one(self, spec: InputSpec, tensor: Any, sizes: dict[str, tuple[int, str]]) -> None:
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(
                f'{spec.name} is a {type(tensor).__name__}, and must be a tensor: tokenizer(..., return_tensors="pt").'
            )
        if tensor.device.type != "cpu":
            raise ValueError(f'{spec.name} is on {tensor.device}, and the package runs on the CPU: .to("cpu").')
        dtype = getattr(torch, spec.dtype)
        if tensor.dtype != dtype:
            raise ValueError(f"{spec.name} is {tensor.dtype}, and the package takes {dtype}: {spec.name}.to({dtype}).")
        shape = list(tensor.shape)
        if len(shape) != len(spec.shape):
            raise ValueError(f"{spec.name} is {shape}, and the package takes {describe(spec.shape)}.")
        for size, expected in zip(shape, spec.shape, strict=True):
            if isinstance(expected, int):
                if size != expected:
                    raise ValueError(f"{spec.name} is {shape}, and the package takes {describe(spec.shape)}.")
                continue
            low, high = self.ranges[expected]
            if not low <= size <= high:
                raise ValueError(
                    f"{spec.name} is {shape}: its {expected} of {size} is outside the range {low} to {high}. Truncate"
                    f' or split the input, or export with dynamic={{"{expected}": (smallest, largest)}} that holds it.'
                )
            other, owner = sizes.setdefault(expected, (size, spec.name))
            if other != size:
                raise ValueError(f"{spec.name} has a {expected} of {size}, and {owner} one of {other}.")

    def resized(
        self, examples: Mapping[str, torch.Tensor], sizes: Mapping[str, int], start: int = 0
    ) -> dict[str, torch.Tensor]:
        """`examples` repeated or cut to `sizes` of the dimensions that vary, from `start` on; others keep theirs."""
        result = {}
        for spec in self.inputs:
            tensor = examples[spec.name]
            for dim, axis in enumerate(spec.shape):
                if axis in sizes:
                    indices = torch.arange(start, start + sizes[axis]) % tensor.shape[dim]
                    tensor = tensor.index_select(dim, indices)
            result[spec.name] = tensor
        return result

    def sizes_of(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, int]:
        """The size of each dimension that varies, in `inputs`."""
        return {
            axis: inputs[spec.name].shape[dim]
            for spec in self.inputs
            for dim, axis in enumerate(spec.shape)
            if isinstance(axis, str)
        }

    def dynamic_shapes(self) -> dict[str, dict[int, Any]]:
        """The same as `torch.export.export` wants it."""
        dims = {axis: torch.export.Dim(axis, min=low, max=high) for axis, (low, high) in self.ranges.items()}
        return {
            spec.name: {dim: dims[axis] for dim, axis in enumerate(spec.shape) if isinstance(axis, str)}
            for spec in self.inputs
        }


def axis_name(name: str, dim: int, ndim: int) -> str | None:
    """What dimension `dim` of the input `name` is called; `None` for one that never varies."""
    if dim == 0:
        return BATCH
    if dim == 1 and (ndim == 2 or name.endswith("inputs_embeds")):
        return DECODER_LENGTH if name.startswith("decoder_") else LENGTH
    return None


def describe(shape: tuple[int | str, ...]) -> str:
    """`shape` as in `[batch, length]`."""
    return f"[{', '.join(map(str, shape))}]"
