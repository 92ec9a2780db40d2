"""`hf_smoothquant.export`: one package with the compiled model, to be run by `hf_smoothquant.load`."""

import copy
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._inductor import config as inductor_config
from transformers import AutoProcessor
from transformers.utils import logging

import hf_smoothquant
from hf_smoothquant.aot.machine import Machine
from hf_smoothquant.aot.manifest import MANIFEST, PACKAGE, Manifest
from hf_smoothquant.aot.package import ExportedModel
from hf_smoothquant.aot.ranges import size_ranges
from hf_smoothquant.aot.signature import Signature
from hf_smoothquant.aot.verification import eager_references
from hf_smoothquant.inductor.coverage import FusionCoverage
from hf_smoothquant.inductor.preparation import prepare
from hf_smoothquant.staging import staged

logger = logging.get_logger(__name__)

MIN_SQNR_DB = 20.0  # below it the package differs from the eager model by more than roundings


def export(
    model: nn.Module,
    example_inputs: Mapping[str, torch.Tensor],
    path: str | os.PathLike,
    *,
    dynamic: bool | Mapping[str, tuple[int, int]] | None = None,
    autocast: torch.dtype | None = None,
    options: Mapping[str, Any] | None = None,
    tokenizer: Any = None,
) -> Manifest:
    """Compiles a quantized model ahead of time, to be run elsewhere by `hf_smoothquant.load` without compiling.

    The folder gets the compiled code with its weights (`model.pt2`), the model's config, its tokenizer or processor,
    and `manifest.json`. It is written aside and moved into place when it is whole. The package runs on CPUs that have
    all the instructions of this one, with the same version of torch.

    Args:
        model (`nn.Module`): a model with int8 Linears, in eval mode. It stays as it is.
        example_inputs (`Mapping[str, torch.Tensor]`): keyword inputs of typical size, e.g. a tokenizer's output. The
            package takes exactly these names; without `attention_mask` it computes no mask, which is faster where
            nothing is padded.
        path (`str` or `os.PathLike`): the folder.
        dynamic (`bool` or `Mapping[str, tuple[int, int]]`, *optional*): which sizes may vary, from the smallest to the
            largest: `{"batch": (1, 8), "length": (1, 384)}`. What isn't named is fixed to the example's. `None` and
            `True`: batch 1 to 128, length 1 to all positions of the model. `False`: the example's sizes only.
        autocast (`torch.dtype`, *optional*): `torch.bfloat16` runs the float operations between the Linears in
            bfloat16, as in `compile`.
        options (`Mapping[str, Any]`, *optional*): further Inductor options, e.g. `{"max_autotune": True}`.
        tokenizer (*optional*): tokenizer or processor to save with the package. By default the model's own, if it has
            one.

    Returns:
        `Manifest`: `fused` and `unfused` say how many Linears became int8 kernels and which did not, `sqnr_db` how
        close the package's outputs are to the eager model's, measured on the example and at the ends of the ranges.

    Raises:
        `ValueError`: the model has no int8 Linear or is in training mode; an input, range or option is wrong; the model
            can't run at an end of the ranges; a size that should vary is fixed by the model's code; the folder holds a
            checkpoint.
        `ImportError`: a library is outside the supported range.
    """
    options = prepare(model, autocast, options)
    folder = Path(path)
    if folder.is_dir() and any(re.match(r"model.*\.safetensors", file) for file in os.listdir(folder)):
        raise ValueError(f"{folder} holds a checkpoint, which has a config.json of its own. Export to another folder.")
    examples = dict(example_inputs)
    signature = Signature.of(examples, size_ranges(model, examples, dynamic))
    model = copy.copy(model)
    model._compiled_call_impl = None
    coverage = FusionCoverage()
    with staged(folder, MANIFEST) as staging, torch.no_grad():
        with _no_cache(model):
            references = eager_references(model, examples, signature, autocast)
            program = _trace(model, examples, signature, autocast)
        # A function, since Inductor copies its options; before the post-grad passes the kernels have their own names.
        options["post_grad_custom_pre_pass"] = lambda graph: coverage.inspect(graph)
        # Folding would make one quantization of the equal ones of query, key and value, which the patterns don't match.
        options.setdefault("joint_graph_constant_folding", False)
        with inductor_config.patch(options):
            torch._inductor.aoti_compile_and_package(program, package_path=str(staging / PACKAGE))
        del program
        model.config.save_pretrained(staging)
        _save_processor(model, tokenizer, staging)
        output = references[0].outputs[0]
        manifest = Manifest(
            model_class=_full_name(type(model)),
            output_class=_full_name(type(output)),
            signature=signature,
            outputs=tuple(output) if isinstance(output, Mapping) else (),
            machine=Machine.here(),
            hf_smoothquant=hf_smoothquant.__version__,
            fused=coverage.fused,
            unfused=tuple(coverage.unfused),
            package_bytes=(staging / PACKAGE).stat().st_size,
        )
        package = ExportedModel(staging, manifest)
        for reference in references:
            manifest.sqnr_db[reference.sizes] = reference.sqnr_db(package)
        manifest.save(staging)
    if min(manifest.sqnr_db.values()) < MIN_SQNR_DB:
        logger.warning(f"The package's outputs differ from the eager model's: SQNR in dB {manifest.sqnr_db}.")
    return manifest


@contextmanager
def _no_cache(model: nn.Module) -> Iterator[None]:
    """Makes a decoder return no cache of keys and values, which no package can."""
    configs = {id(module.config): module.config for module in model.modules() if hasattr(module, "config")}
    caching = [config for config in configs.values() if getattr(config, "use_cache", False)]
    try:
        for config in caching:
            config.use_cache = False
        yield
    finally:
        for config in caching:
            config.use_cache = True


def _trace(
    model: nn.Module, examples: Mapping[str, torch.Tensor], signature: Signature, autocast: torch.dtype | None
) -> torch.export.ExportedProgram:
    # A size of 1 in the example would be taken for fixed.
    sizes = signature.sizes_of(examples)
    traced = signature.resized(examples, {axis: max(size, 2) for axis, size in sizes.items()})
    try:
        with torch.autocast("cpu", autocast, enabled=autocast is not None):
            program = torch.export.export(model, (), traced, dynamic_shapes=signature.dynamic_shapes())
    except (torch._dynamo.exc.UserError, RuntimeError) as error:
        raise ValueError(
            f"torch.export can't make {type(model).__name__} into a graph for these inputs and ranges: {error}\n"
            "If a size can't vary, leave it out of dynamic={...}; dynamic=False fixes them all."
        ) from error
    # Export asserts the dtype before each cast. To the fusion patterns such a node is a second reader of the value, and
    # no Linear would be fused. The manifest's check of the inputs stands in for them.
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.find_nodes(
                op="call_function", target=torch.ops.aten._assert_tensor_metadata.default
            ):
                module.graph.erase_node(node)
            module.recompile()
    return program


def _save_processor(model: nn.Module, tokenizer: Any, folder: Path) -> None:
    """Saves the tokenizer, else what the model's own source has: a tokenizer, an image processor and so on."""
    if tokenizer is None and model.name_or_path:
        try:
            tokenizer = AutoProcessor.from_pretrained(model.name_or_path)
        except Exception as error:  # each kind fails in its own way when its files are absent
            logger.warning(f"The package has no tokenizer: none in {model.name_or_path!r} ({type(error).__name__}).")
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
