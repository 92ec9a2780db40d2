"""Which weights a model uses in other ways than by calling the Linear that owns them, found by tracing a pass."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary
from transformers import PreTrainedModel

from hf_smoothquant.selection import LINEARS

PRODUCTS = ("linear", "matmul", "__matmul__", "mm", "bmm", "addmm", "baddbmm", "einsum", "grouped_mm", "_grouped_mm")
PRODUCTS += ("multi_head_attention_forward", "_native_multi_head_attention", "_transformer_encoder_layer_fwd")


@dataclass
class WeightUse:
    """What a pass did with weights.

    Attributes:
        read (`list[str]`): the Linears whose weight was read otherwise than by their own call. In int8 that might
            fail, or meet inputs that no statistics know of.
        products (`list[str]`): the modules that multiply by weights of their own without being Linears (stacked
            experts, routers, `nn.MultiheadAttention`).
    """

    read: list[str] = field(default_factory=list)
    products: list[str] = field(default_factory=list)


@torch.no_grad()
def find_weight_use(model: PreTrainedModel, linears: Mapping[str, nn.Linear], inputs: Mapping) -> WeightUse:
    """Runs `model` once on the small batch `inputs` and finds how the weights of `linears`, and others, are used."""
    tracer = _Tracer({id(parameter) for parameter in model.parameters()})

    def enter(module, *_):
        tracer.called = id(module.weight)

    def leave(*_):
        tracer.called = None

    handles = [linear.register_forward_pre_hook(enter) for linear in linears.values()]
    handles += [linear.register_forward_hook(leave) for linear in linears.values()]
    try:
        with tracer:
            model(**inputs)
    finally:
        for handle in handles:
            handle.remove()
    use = WeightUse([name for name, linear in linears.items() if id(linear.weight) in tracer.read])
    for name, module in model.named_modules():
        own = {id(parameter) for parameter in module.parameters(recurse=False) if parameter.ndim > 1}
        if own & tracer.multiplied and not isinstance(module, (*LINEARS, nn.Embedding)):
            use.products.append(name)
    return use


class _Tracer(TorchFunctionMode):
    """Follows parameters through the torch functions of a pass, views and slices of them included.

    Attributes:
        called (`int` or `None`): id of the weight of the Linear that is being called.
        read, multiplied (`set[int]`): ids of the parameters that were used outside of such a call: in any function, and
            as a factor of a matrix product.
    """

    def __init__(self, parameters: set[int]):
        super().__init__()
        self.called: int | None = None
        self.read: set[int] = set()
        self.multiplied: set[int] = set()
        self._parameters = parameters
        self._views = WeakTensorKeyDictionary()  # by tensor made of one parameter alone: the parameter's id

    def __torch_function__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        outputs = _tensors(output)
        if not outputs:
            return output  # a shape or a dtype: the values weren't read
        inputs = [tensor for tensor in _tensors((args, kwargs)) if tensor.is_floating_point()]
        owners = [self._owner(tensor) for tensor in inputs]
        used = set(owners) - {None, self.called}
        self.read |= used
        if getattr(func, "__name__", "") in PRODUCTS:
            self.multiplied |= used
        elif used and len(set(owners)) == 1:
            for tensor in outputs:
                self._views[tensor] = owners[0]
        return output

    def _owner(self, tensor: torch.Tensor) -> int | None:
        return id(tensor) if id(tensor) in self._parameters else self._views.get(tensor)


def _tensors(values) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
