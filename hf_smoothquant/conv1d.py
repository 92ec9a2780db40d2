"""GPT-2's `Conv1D`: a Linear that keeps its weight transposed. It is made one for the time of quantization."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn
from transformers.pytorch_utils import Conv1D


@contextmanager
def conv1d_as_linear(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Has each `Conv1D` among `modules` be an `nn.Linear`; in the end those that are int8 by then stay Linears.

    So nothing else has to know of `Conv1D`, and an error or an interruption leaves the model as it was.
    """
    modules = list(modules)
    to_linear(modules)
    try:
        yield
    finally:
        to_conv1d(module for module in modules if type(module) is nn.Linear)


def to_linear(modules: Iterable[nn.Module]) -> None:
    """Turns each `Conv1D` into an `nn.Linear` in place, its weight `[N, K]` a view: no memory, and still shared."""
    for module, weight in _with_transposed(module for module in modules if isinstance(module, Conv1D)):
        module.weight = weight
        module.in_features, module.out_features = module.nx, module.nf
        module.__class__ = nn.Linear


def to_conv1d(modules: Iterable[nn.Linear]) -> None:
    """Turns those Linears that once were `Conv1D`s into them again in place, weight `[K, N]`."""
    for module, weight in _with_transposed(module for module in modules if hasattr(module, "nf")):
        module.weight = weight
        module.__class__ = Conv1D
        del module.in_features, module.out_features


def _with_transposed(modules: Iterable[nn.Module]) -> Iterator[tuple[nn.Module, nn.Parameter]]:
    """Each module with its weight transposed: one Parameter for the modules that share one."""
    transposed: dict[nn.Parameter, nn.Parameter] = {}
    for module in modules:
        weight = module.weight
        if weight not in transposed:
            transposed[weight] = nn.Parameter(weight.detach().T, requires_grad=weight.requires_grad)
        yield module, transposed[weight]
