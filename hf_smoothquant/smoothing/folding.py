"""Moving `1/s` into the module before a group, where nothing else reads its output (SmoothQuant, section 4).

The run-time multiplication disappears. The module is a norm or another Linear: value before the attention's output, up
before down, a Linear before ReLU. It is done only where it is exact: between the module and the group stand operations
that pass a scale on and nothing else, and the folded float model reproduces the original's outputs on a real batch.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from torchao.quantization import Int8Tensor
from transformers import PreTrainedModel

from hf_smoothquant.smoothing.dataflow import ScaleFlow
from hf_smoothquant.smoothing.outputs import float_outputs, output_tensors


@torch.no_grad()
def find_folds(model: PreTrainedModel, groups: Sequence[Mapping[str, nn.Linear]], inputs: Mapping) -> dict[int, str]:
    """Finds the modules that can take over `1/s`. The model is left as it was.

    It costs three forward passes, one of them traced, and more only where a fold turns out to be wrong.

    Args:
        model (`PreTrainedModel`): the calibrated float model.
        groups (`Sequence[Mapping[str, nn.Linear]]`): the Linears of each group.
        inputs (`Mapping`): a small real batch.

    Returns:
        `dict[int, str]`: for the index of each group that can be folded, the name of the module before it.
    """
    producers = find_producers(model, groups, inputs)
    if not producers:
        return {}
    reference = float_outputs(model, inputs)

    def exact(indices: list[int]) -> list[int]:
        if _reproduces(model, groups, {index: producers[index] for index in indices}, inputs, reference):
            return indices
        half = len(indices) // 2
        return exact(indices[:half]) + exact(indices[half:]) if half else []

    return {index: producers[index] for index in exact(list(producers))}


def divide_outputs(module: nn.Module, factors: torch.Tensor) -> None:
    """Divides the output channels of a norm or a Linear, float or int8, by `factors`, `[N]`, in place.

    In an int8 weight the scales of its rows take them over, and no value is rounded again.
    """
    for parameter in module.parameters(recurse=False):
        values = parameter.scale if isinstance(parameter, Int8Tensor) else parameter
        values.copy_(values.float() / factors.reshape(-1, *(1,) * (values.ndim - 1)))


def find_producers(
    model: PreTrainedModel, groups: Sequence[Mapping[str, nn.Linear]], inputs: Mapping
) -> dict[int, str]:
    """For each group that reads the output of one norm or Linear, scales passed on, which nothing else reads: its name.

    A module that shares a parameter with another isn't among them. What happens to the order of the channels on the
    way is not known.
    """
    linears = {linear for group in groups for linear in group.values()}
    owners = Counter(parameter for module in model.modules() for parameter in module.parameters(recurse=False))
    names = {
        module: name
        for name, module in model.named_modules()
        if (module in linears or _looks_like_norm(module)) and all(owners[one] == 1 for one in module.parameters())
    }
    flow = ScaleFlow()

    def watch(module, args, kwargs, output):
        if module in linears or _scales_with_its_parameters(module, args, kwargs, output):
            flow.watch(module, output)

    def end(module, args, output):
        flow.end(output_tensors(output))

    handles = [module.register_forward_hook(watch, with_kwargs=True) for module in names]
    # What a model, or the base model in it, returns is read by whoever calls it.
    models = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    handles += [module.register_forward_hook(end) for module in models]
    try:
        with flow:
            model(**inputs)
    finally:
        for handle in handles:
            handle.remove()
    found: dict[int, str] = {}
    for index, group in enumerate(groups):
        weights = {id(linear.weight) for linear in group.values()}
        channels = next(iter(group.values())).in_features
        # All that its Linears ever read has to come from one module.
        sources = set.intersection(*(flow.sources.get(weight, set()) for weight in weights))
        for module, name in names.items():
            if module in sources and flow.readers[module] <= weights and len(module.weight) == channels:
                found.setdefault(index, name)
    return found


def _looks_like_norm(module: nn.Module) -> bool:
    shapes = [parameter.ndim for parameter in module.parameters()]
    return hasattr(module, "weight") and shapes in ([1], [1, 1]) and not list(module.children())


def _scales_with_its_parameters(module: nn.Module, args: tuple, kwargs: dict, output: object) -> bool:
    """Whether it does, unlike norms that multiply by `1 + weight`."""
    if not isinstance(output, torch.Tensor) or output.shape[-1:] != module.weight.shape:
        return False
    factors = _powers_of_two(module.weight)
    with _divided({module: factors}):
        return _same([output / factors], [module.forward(*args, **kwargs)], output.dtype)


def _reproduces(
    model: PreTrainedModel,
    groups: Sequence[Mapping[str, nn.Linear]],
    folds: Mapping[int, str],
    inputs: Mapping,
    reference: Sequence[torch.Tensor],
) -> bool:
    """Whether the model, folded with some factors, gives the outputs `reference` on `inputs`."""
    powers = {index: _powers_of_two(model.get_submodule(name).weight) for index, name in folds.items()}
    divided = {model.get_submodule(name): powers[index] for index, name in folds.items()}
    multiplied = {linear: powers[index] for index in folds for linear in groups[index].values()}
    with _divided(divided), _scaled_inputs(multiplied):
        outputs = float_outputs(model, inputs)
    return _same(reference, outputs, model.dtype)


def _powers_of_two(weight: torch.Tensor) -> torch.Tensor:
    """Factors to try a fold with, one for each row of `weight`: up to 1 / 2^10 (float16: 1 / 2^4).

    Dividing by them and multiplying again rounds nothing. A wrong fold is off by up to 2^10.
    """
    bits = 4 if weight.dtype == torch.float16 else 10
    return 0.5 ** torch.randint(bits + 1, (len(weight),), generator=torch.Generator().manual_seed(0))


@contextmanager
def _divided(factors: Mapping[nn.Module, torch.Tensor]) -> Iterator[None]:
    """Divides the outputs of modules by powers of two for a while."""
    for module, powers in factors.items():
        divide_outputs(module, powers)
    try:
        yield
    finally:
        for module, powers in factors.items():
            divide_outputs(module, 1 / powers)


@contextmanager
def _scaled_inputs(factors: Mapping[nn.Linear, torch.Tensor]) -> Iterator[None]:
    """Multiplies the inputs of Linears by `s`: what their weights will have in them once they are quantized."""

    def scale_by(s):
        return lambda module, args: ((args[0].float() * s).to(args[0].dtype), *args[1:]) if args else None

    handles = [linear.register_forward_pre_hook(scale_by(s)) for linear, s in factors.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _same(reference: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], dtype: torch.dtype) -> bool:
    """Equal within one rounding, relative to the whole tensor: powers of two don't round anything on their way."""
    bound = torch.finfo(dtype).eps
    return all((one - other).norm() <= bound * one.norm() for one, other in zip(reference, outputs, strict=True))
