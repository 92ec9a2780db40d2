"""Moving `1/s` into the normalization before a group, where nothing else reads its output (SmoothQuant, section 4).

The run-time multiplication disappears. It is done only where it is provably exact: the norm's output must be read by
the group's Linears alone, and the folded float model must reproduce the original's outputs on a real batch.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from hf_smoothquant.smoothing.outputs import float_outputs, output_tensors


def fold(
    model: PreTrainedModel, groups: Sequence[Mapping[str, nn.Linear]], factors: Sequence[torch.Tensor], inputs: Mapping
) -> dict[int, str]:
    """Divides the norm before each group by its factors, in place, where that is exact.

    Args:
        model (`PreTrainedModel`): the calibrated float model; its Linears are left alone.
        groups (`Sequence[Mapping[str, nn.Linear]]`): the Linears of each group.
        factors (`Sequence[torch.Tensor]`): `s` of each group, `[K]`, float32.
        inputs (`Mapping`): a small real batch.

    Returns:
        `dict[int, str]`: for the index of each folded group, whose Linears now get their input divided by `s` already,
        the name of the norm.
    """
    producers = find_producers(model, groups, inputs)
    if not producers:
        return {}
    with torch.no_grad():
        reference = float_outputs(model, inputs)
        attempts = [list(producers)] + [[index] for index in producers if len(producers) > 1]
        folded: dict[int, str] = {}
        for attempt in attempts:
            norms = [model.get_submodule(producers[index]) for index in attempt]
            saved = [[parameter.clone() for parameter in norm.parameters()] for norm in norms]
            for index, norm in zip(attempt, norms, strict=True):
                for parameter in norm.parameters():
                    parameter.copy_(parameter.float() / factors[index])
            scaled = {index: factors[index] for index in [*folded, *attempt]}
            with _scaled_inputs({linear: s for index, s in scaled.items() for linear in groups[index].values()}):
                exact = _same(reference, float_outputs(model, inputs), model.dtype)
            if exact:
                folded |= {index: producers[index] for index in attempt}
            else:
                for norm, parameters in zip(norms, saved, strict=True):
                    for parameter, value in zip(norm.parameters(), parameters, strict=True):
                        parameter.copy_(value)
            if exact and len(attempt) == len(producers):
                break
    return folded


def find_producers(
    model: PreTrainedModel, groups: Sequence[Mapping[str, nn.Linear]], inputs: Mapping
) -> dict[int, str]:
    """For each group whose input is the output of a norm that nothing else reads: the norm's name."""
    norms = {
        module: name
        for name, module in model.named_modules()
        if not list(module.children()) and [parameter.ndim for parameter in module.parameters()] in ([1], [1, 1])
    }
    readers = _Readers()

    def remember(module, args, output):
        if isinstance(output, torch.Tensor):
            readers.watch(output, module)

    def returned(module, args, output):
        readers.note_returned(output_tensors(output))

    handles = [norm.register_forward_hook(remember) for norm in norms]
    # What a model, or the base model in it, returns is read by whoever calls it.
    models = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    handles += [module.register_forward_hook(returned) for module in models]
    try:
        with torch.no_grad(), readers:
            model(**inputs)
    finally:
        for handle in handles:
            handle.remove()
    owner = {id(linear.weight): index for index, group in enumerate(groups) for linear in group.values()}
    found: dict[int, set[nn.Module]] = {}
    for norm, weights in readers.by_norm.items():
        indices = {owner.get(weight) for weight in weights}
        if len(indices) == 1 and None not in indices:
            found.setdefault(indices.pop(), set()).add(norm)
    read_elsewhere = {
        owner[weight] for weight in readers.unwatched_weights if weight in owner
    }  # a Linear that also reads something else can't have its input changed
    return {
        index: norms[next(iter(candidates))]
        for index, candidates in found.items()
        if len(candidates) == 1 and index not in read_elsewhere
    }


class _Readers(TorchFunctionMode):
    """Notes which torch functions read the watched tensors: the weight's id for a linear, `None` for anything else."""

    def __init__(self):
        super().__init__()
        self.by_norm: dict[nn.Module, set[int | None]] = {}
        self.unwatched_weights: set[int] = set()
        self._norms: dict[int, nn.Module] = {}
        self._alive: list[torch.Tensor] = []  # ids must not be used again during the pass

    def watch(self, tensor: torch.Tensor, norm: nn.Module) -> None:
        self._alive.append(tensor)
        self._norms[id(tensor)] = norm
        self.by_norm.setdefault(norm, set())

    def note_returned(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            if id(tensor) in self._norms:
                self.by_norm[self._norms[id(tensor)]].add(None)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        is_linear = func is nn.functional.linear and len(args) > 1
        if is_linear and id(args[0]) not in self._norms:
            self.unwatched_weights.add(id(args[1]))
        # Reading a shape or a dtype gives no tensor and isn't reading the values.
        if any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(output)):
            for leaf in tree_leaves((args, kwargs)):
                if id(leaf) in self._norms:
                    self.by_norm[self._norms[id(leaf)]].add(id(args[1]) if is_linear else None)
        return output


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
    """Equal within the rounding that a network accumulates: a relative error of `eps^0.6` of the model's dtype.

    That is 7e-5 for float32, 1.6e-2 for float16 and 5e-2 for bfloat16; a wrong fold is off by the factors themselves.
    """
    bound = torch.finfo(dtype).eps ** 0.6
    return all((one - other).norm() <= bound * one.norm() for one, other in zip(reference, outputs, strict=True))
