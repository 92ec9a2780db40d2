"""`SmoothQuantTensor`: torchao's `Int8Tensor` with smoothing factors that follow the weight wherever it is cut."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import return_and_correct_aliasing
from torchao.quantization import Int8Tensor

aten = torch.ops.aten
ROWS, COLUMNS = 0, 1


class SmoothQuantTensor(Int8Tensor):
    """An int8 weight, `[N, K]`, for Linears: product, cuts by rows and columns, moves between devices and dtypes.

    torchao 0.18 leaves `act_pre_scale` whole when columns are cut, cuts it by row indices, ignores it in `dequantize`,
    and `.to(dtype)` changes nothing: wrong values without a word. Here each operation is right or refused.

    A cut by rows (`weight[:n]`, `weight[indices]`, `split`, `chunk`, `index_select`) is the weight of fewer outputs. A
    cut by columns (`weight[:, :k]`) is that of fewer inputs, with the scale of the whole input: the products of all
    parts add up to that of the whole. `torch.cat` joins rows again.
    """

    def dequantize(self, output_dtype: torch.dtype | None = None) -> torch.Tensor:
        """The float weight that this stands for, smoothing undone, in `output_dtype` or the weight's own."""
        floats = super().dequantize(torch.float32)
        if self.act_pre_scale is not None:
            floats = floats * self.act_pre_scale
        return floats.to(output_dtype or self.dtype)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func not in cls._ATEN_OP_TABLE[cls]:
            raise NotImplementedError(
                f"An int8 weight can't be used in {func}: it is for torch.nn.functional.linear(x, weight), and can be "
                "cut by rows and columns, copied and moved. For anything else take weight.dequantize(), or leave the "
                "module in float with SmoothQuantConfig(modules_to_not_convert=[...])."
            )
        return super().__torch_dispatch__(func, types, args, kwargs or {})


def as_torchao(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` as torchao's own class where it is ours, sharing its parts; another tensor as it is."""
    return _with_parts(tensor, Int8Tensor) if isinstance(tensor, SmoothQuantTensor) else tensor


def _with_parts(tensor: Int8Tensor, cls: type[Int8Tensor] = SmoothQuantTensor, **changed: Any) -> Int8Tensor:
    """A tensor of class `cls` with the parts and attributes of `tensor`, but for those in `changed`."""
    names = (
        tensor.tensor_data_names
        + tensor.tensor_attribute_names
        + tensor.optional_tensor_data_names
        + tensor.optional_tensor_attribute_names
    )
    return cls(**{name: getattr(tensor, name) for name in names} | changed)


def _cut(tensor: SmoothQuantTensor, dim: int, cut: Callable[[torch.Tensor, int], torch.Tensor]) -> SmoothQuantTensor:
    """Cuts `tensor` along `dim` by `cut(part, dim)`. A scale of the whole tensor, `[1, 1]`, stays whole."""
    dim = _dimension(tensor, dim)
    qdata = cut(tensor.qdata, dim)
    changed = {
        "qdata": qdata,
        "block_size": [min(*sizes) for sizes in zip(tensor.block_size, qdata.shape, strict=True)],
    }
    for name in ("scale", "zero_point"):
        part = getattr(tensor, name)
        if part is not None and part.shape[dim] == tensor.shape[dim] and part.numel() > 1:
            changed[name] = cut(part, dim)
    if dim == COLUMNS and tensor.act_pre_scale is not None:
        changed["act_pre_scale"] = cut(tensor.act_pre_scale, 0)
    return _with_parts(tensor, **changed)


def _dimension(tensor: SmoothQuantTensor, dim: int) -> int:
    if tensor.ndim != 2 or not -2 <= dim < 2:
        raise IndexError(f"An int8 weight of shape {list(tensor.shape)} can't be cut along dimension {dim}.")
    return dim % 2


@SmoothQuantTensor.implements(aten.slice.Tensor)
def _slice(func, types, args, kwargs):
    tensor, dim, start, end, step = (*args, *(0, None, None, 1)[len(args) - 1 :])
    cut = _cut(tensor, dim, lambda part, dim: aten.slice.Tensor(part, dim, start, end, step))
    return return_and_correct_aliasing(func, args, kwargs, cut)


@SmoothQuantTensor.implements([aten.split.Tensor, aten.split_with_sizes.default])
def _split(func, types, args, kwargs):
    tensor, sizes, dim = args[0], args[1], args[2] if len(args) > 2 else kwargs.get("dim", 0)
    length = tensor.shape[_dimension(tensor, dim)]
    if not isinstance(sizes, Sequence):
        sizes = [min(sizes, length - start) for start in range(0, length, sizes)]
    ends = torch.tensor(sizes).cumsum(0).tolist()
    return [aten.slice.Tensor(tensor, dim, end - size, end) for size, end in zip(sizes, ends, strict=True)]


@SmoothQuantTensor.implements(aten.index_select.default)
def _index_select(func, types, args, kwargs):
    tensor, dim, indices = args
    return _cut(tensor, dim, lambda part, dim: part.index_select(dim, indices))


@SmoothQuantTensor.implements(aten.index.Tensor)
def _index(func, types, args, kwargs):
    tensor, indices = args
    given = [dim for dim, index in enumerate(indices) if index is not None]
    if len(given) != 1 or indices[given[0]].ndim != 1:
        raise NotImplementedError(
            "An int8 weight can be indexed by one vector, of rows or of columns: weight[rows], weight[:, columns]. For "
            "single values take weight.dequantize()."
        )
    index = indices[given[0]]
    index = index.nonzero().flatten() if index.dtype == torch.bool else index
    return _cut(tensor, given[0], lambda part, dim: part.index_select(dim, index % part.shape[dim]))


@SmoothQuantTensor.implements(aten.select.int)
def _select(func, types, args, kwargs):
    raise NotImplementedError(
        "A single row or column is no weight of a Linear any more: take weight[i : i + 1], or weight.dequantize()[i]."
    )


@SmoothQuantTensor.implements(aten.cat.default)
def _cat(func, types, args, kwargs):
    tensors, dim = args[0], args[1] if len(args) > 1 else kwargs.get("dim", 0)
    first = tensors[0]
    alike = all(isinstance(one, SmoothQuantTensor) and _same_input_side(one, first) for one in tensors)
    if not alike or _dimension(first, dim) != ROWS or any(len(one.scale) != len(one) for one in tensors):
        raise NotImplementedError(
            "Int8 weights can be joined by rows where they read the same input: with the same smoothing factors and "
            "activation scale. Join the float weights (dequantize()) before they are quantized."
        )
    parts = {name: torch.cat([getattr(one, name) for one in tensors]) for name in ("qdata", "scale")}
    return _with_parts(first, **parts)


def _same_input_side(one: SmoothQuantTensor, other: SmoothQuantTensor) -> bool:
    """Whether both take the same input, smoothed and quantized in the same way."""
    if one.shape[1:] != other.shape[1:] or one.act_quant_kwargs != other.act_quant_kwargs:
        return False
    for name in ("act_pre_scale", "act_quant_scale", "act_quant_zero_point"):
        ours, theirs = getattr(one, name), getattr(other, name)
        if (ours is None) != (theirs is None) or (ours is not None and not torch.equal(ours, theirs)):
            return False
    return True


@SmoothQuantTensor.implements(aten._to_copy.default)
def _to_copy(func, types, args, kwargs):
    """Another device or outer dtype. The int8 numbers and the float32 scales stay to the bit."""
    tensor = args[0]
    to = tensor._get_to_kwargs(*args[1:], **{key: value for key, value in kwargs.items() if key != "memory_format"})
    if not to["dtype"].is_floating_point:
        raise TypeError(f"An int8 weight stands for floats: it can't be turned into {to['dtype']}.")
    copied = tensor._apply_fn_to_data(lambda part: part.to(to["device"], non_blocking=to["non_blocking"], copy=True))
    return return_and_correct_aliasing(func, args, kwargs, _with_parts(copied, dtype=to["dtype"]))


@SmoothQuantTensor.implements(aten.copy_.default)
def _copy_(func, types, args, kwargs):
    target, source = args[:2]
    if not isinstance(source, Int8Tensor) or not isinstance(target, Int8Tensor):
        what, where = ("float", "an int8 weight") if isinstance(target, Int8Tensor) else ("quantized", "a float one")
        raise TypeError(
            f"A {what} weight can't be copied into {where}: load the state dict into a model that was quantized alike, "
            "or into a float one after dequantize()."
        )
    names = target.tensor_data_names + target.optional_tensor_data_names
    for name in names:
        ours, theirs = getattr(target, name), getattr(source, name)
        if getattr(ours, "shape", None) != getattr(theirs, "shape", None):
            raise ValueError(
                f"Int8 weights that were quantized differently can't be copied: {name} is "
                f"{'absent' if ours is None else list(ours.shape)} in the one and "
                f"{'absent' if theirs is None else list(theirs.shape)} in the other."
            )
    for name in names:
        if getattr(target, name) is not None:
            getattr(target, name).copy_(getattr(source, name))
    return target


@SmoothQuantTensor.implements(aten._pin_memory.default)
def _pin_memory(func, types, args, kwargs):
    return args[0]._apply_fn_to_data(lambda part: part.pin_memory())


@SmoothQuantTensor.implements_torch_function(torch.Tensor.share_memory_)
def _share_memory_(func, types, args, kwargs):
    """For processes that work on one copy of a model: torch would look for the wrapper's own storage, and crash."""
    for part in _parts(args[0]):
        part.share_memory_()
    return args[0]


@SmoothQuantTensor.implements_torch_function(torch.Tensor.is_shared)
def _is_shared(func, types, args, kwargs):
    return all(part.is_shared() for part in _parts(args[0]))


def _parts(tensor: SmoothQuantTensor) -> list[torch.Tensor]:
    return [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]


torch.serialization.add_safe_globals([SmoothQuantTensor])
