"""Which Linears read the output of a module through nothing but operations that pass a scale on, by tracing a pass."""

from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary


class ScaleFlow(TorchFunctionMode):
    """Follows the outputs of modules through the torch functions of a forward pass, as far as they pass on a scale.

    A function does when 2^20 times the input gives 2^20 times the output to the bit: a power of two rounds nothing.
    Views, transpositions, ReLU, a product with another tensor and attention (in its values) do; sums, softmax, GELU
    and whatever clamps don't. So no table of functions is needed.

    Attributes:
        readers (`dict[nn.Module, set]`): by watched module, what reads its output where the scale ends: the id of the
            weight for a Linear, `None` for anything else.
        sources (`dict[int, set[nn.Module]]`): by id of a Linear's weight, the watched modules whose scale each of its
            inputs had.
    """

    def __init__(self):
        super().__init__()
        self.readers: dict[nn.Module, set[int | None]] = defaultdict(set)
        self.sources: dict[int, set[nn.Module]] = {}
        self._carried = WeakTensorKeyDictionary()  # by tensor: the modules whose scale it has

    def watch(self, module: nn.Module, output: torch.Tensor) -> None:
        """Follows `output`, which `module` has just returned."""
        self._carried[output] = {module}

    def end(self, tensors: Sequence[torch.Tensor]) -> None:
        """Says that `tensors` leave the model: whoever gets them reads them."""
        for tensor in tensors:
            for module in self._carried.get(tensor, ()):
                self.readers[module].add(None)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        inputs = _tensors((args, kwargs))
        versions = [tensor._version for tensor in inputs]
        output = func(*args, **kwargs)
        if func is nn.functional.linear and len(args) > 1:
            self._read_by_linear(*args[:2])
            return output
        outputs = _tensors(output)
        changed = any(tensor._version != version for tensor, version in zip(inputs, versions, strict=True))
        if not outputs and not changed:
            return output  # a shape or a dtype: the values weren't read
        for module in set().union(*(self._carried.get(tensor, ()) for tensor in inputs)):
            if not changed and self._passes_on(module, func, args, kwargs, outputs):
                for tensor in outputs:
                    self._carried[tensor] = {*self._carried.get(tensor, ()), module}
            else:
                self.readers[module].add(None)
        return output

    def _read_by_linear(self, x: torch.Tensor, weight: torch.Tensor) -> None:
        modules = self._carried.get(x, set())
        for module in modules:
            self.readers[module].add(id(weight))
        self.sources[id(weight)] = modules & self.sources.get(id(weight), modules)

    def _passes_on(self, module: nn.Module, func: Callable, args, kwargs, outputs: Sequence[torch.Tensor]) -> bool:
        scaled = {id(tensor) for tensor in _tensors((args, kwargs)) if module in self._carried.get(tensor, ())}
        half = any(tensor.dtype == torch.float16 for tensor in [*_tensors((args, kwargs)), *outputs])
        scale = 2.0 ** (4 if half else 20)  # float16 ends at 65504
        args, kwargs = tree_map(lambda leaf: leaf * scale if id(leaf) in scaled else leaf, (args, kwargs))
        again = _tensors(func(*args, **kwargs))
        return all(_times(scale, one, other) for one, other in zip(outputs, again, strict=True))


def _times(scale: float, one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether `other` is `scale * one`, but for the rounding of subnormal values, which float16 is full of."""
    if not one.is_floating_point():
        return False
    info = torch.finfo(one.dtype)
    return torch.allclose(one * scale, other, rtol=0, atol=scale * info.smallest_normal * info.eps)


def _tensors(values) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
