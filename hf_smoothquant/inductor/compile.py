"""`hf_smoothquant.compile`: TorchInductor with what int8 needs, for one model only."""

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import nn
from torch._inductor import config as inductor_config

from hf_smoothquant.inductor.coverage import FusionCoverage
from hf_smoothquant.inductor.preparation import prepare

Model = TypeVar("Model", bound=nn.Module)


def compile(
    model: Model,
    *,
    dynamic: bool | None = None,
    autocast: torch.dtype | None = None,
    options: Mapping[str, Any] | None = None,
) -> Model:
    """Compiles a quantized model: each quantized Linear becomes one fused oneDNN int8 kernel.

    The result is a model of the same class on the same weights, called like the original, which stays as it is
    (eager). The first call with new kinds of inputs compiles for 10 to 60 s. Weights are frozen into the compiled
    code: change them afterwards and the compiled model doesn't see it. Calls run without gradients.

    Outputs equal the eager model's up to rounding. Since a rounding may put a value on the other side of an int8 step,
    that is not to the bit: on real encoders the signal-to-noise ratio to eager is above 25 dB, which is less noise than
    int8 itself adds to float.

    On CPUs without VNNI (AVX2, early AVX512), where oneDNN's int8 sums saturate, nothing is fused: the int8 numbers are
    multiplied in float32. The values are right, at the speed of float.

    Inductor options hold during the calls of this model only; the process's configuration is left alone.

    Args:
        model (`nn.Module`): a model with int8 Linears, in eval mode.
        dynamic (`bool`, *optional*): as `torch.compile` has it: `None` compiles for the shapes met, and for all shapes
            once they vary; `True` for all shapes at once; `False` for each shape anew. A size of 1 is always compiled
            for itself. So requests of any length in batch 1 take at most 3 compilations with `None` and 2 with `True`,
            batches and lengths of any size together at most 6 and 4 (as long as the inputs have the same names).
        autocast (`torch.dtype`, *optional*): `torch.bfloat16` runs the float operations between the Linears (attention
            first of all) in bfloat16: for models loaded in float32.
        options (`Mapping[str, Any]`, *optional*): further Inductor options, e.g. `{"max_autotune": True}`.

    Returns:
        The compiled model. Its `fusion_coverage` says, after the first call, how many Linears were fused (`fused`) and
        which were not (`unfused`); the latter are also warned about.

    Raises:
        `ValueError`: the model has no int8 Linear, or is in training mode, or an option doesn't exist.
        `ImportError`: a library is outside the supported range.
        `RuntimeError`: in the first call, if a kernel that saturates on this CPU came into the graph all the same.
    """
    options = prepare(model, autocast, options)
    coverage = FusionCoverage()
    compiled = copy.copy(model)  # shares weights and submodules; nn.Module keeps its compiled form per object
    # Isolated: recompilations are counted per function, and all models share this one. Otherwise the ninth compilation
    # of a process would silently run eager.
    run = torch.compile(compiled._call_impl, dynamic=dynamic, backend=_backend(coverage), isolate_recompiles=True)

    @functools.wraps(model.forward)
    def call(*args, **kwargs):
        # Dynamo asks for `freezing` while it traces, so that it must be set around the call: torch.compile(options=...)
        # would set it too late, and every Linear would stay unfused.
        with (
            torch.no_grad(),
            inductor_config.patch(options),
            torch.autocast("cpu", autocast, enabled=autocast is not None),
        ):
            return run(*args, **kwargs)

    compiled._compiled_call_impl = call
    compiled.fusion_coverage = coverage
    return compiled


def _backend(coverage: FusionCoverage) -> Callable:
    """TorchInductor, showing `coverage` each graph after freezing: before its cache, which would hide known graphs."""
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    def inner_compile(graph_module, example_inputs, **kwargs):
        coverage.inspect(graph_module.graph)
        return compile_fx_inner(graph_module, example_inputs, **kwargs)

    return functools.partial(compile_fx, inner_compile=inner_compile)
