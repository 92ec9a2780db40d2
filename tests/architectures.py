"""Tiny models of many architectures, made from configs, and what quantization has to do to each."""

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from conftest import SMALL, sqnr_db
from transformers import PreTrainedConfig, PreTrainedModel

import hf_smoothquant
from hf_smoothquant import SmoothQuantConfig, cpu, quantization_report
from hf_smoothquant.linear import Int8Linear

VOCABULARY = 64
TEXT = {"vocab_size": VOCABULARY, "max_position_embeddings": 130, "initializer_range": 0.2, **SMALL}
IDS = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
TIED = "weight tied to another module"
OUTPUT = "output embedding"
OWN = "weights not in a Linear"
FP32 = "kept in float32 by the model"
FEW = "fewer than 32 features"


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def text_batch(seed: int, length: int = 24) -> dict[str, torch.Tensor]:
    """Four rows of random ids; the second row is padded from the middle on."""
    ids = torch.randint(5, VOCABULARY, (4, length), generator=generator(seed))
    mask = torch.ones_like(ids)
    ids[1, length // 2 :] = 0
    mask[1, length // 2 :] = 0
    return {"input_ids": ids, "attention_mask": mask}


@dataclass(frozen=True)
class Architecture:
    """A model class with a config, and what has to become of its modules. Names have `*` for the layer's number.

    Attributes:
        model_class (`type[PreTrainedModel]`), config (`PreTrainedConfig`): what to build.
        quantized (`set[str]`): the Linears that become int8.
        folded (`dict[str, str]`): by the first Linear of a group, the module that its factors are folded into.
        kept (`dict[str, str]`): the modules that stay in float: why.
        min_sqnr_db (`tuple[float, float]`): least SQNR of the outputs against float, static and dynamic: measured
            values less about 3 dB.
        batch (`Callable`): by seed, a batch of inputs.
    """

    model_class: type[PreTrainedModel]
    config: PreTrainedConfig
    quantized: set[str]
    min_sqnr_db: tuple[float, float]
    folded: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)
    batch: Callable[[int], dict[str, torch.Tensor]] = text_batch

    def build(self) -> PreTrainedModel:
        """The float model, the same at every call."""
        torch.manual_seed(0)
        return self.model_class(copy.deepcopy(self.config)).eval()

    def quantize(self, folder: Path, **arguments) -> PreTrainedModel:
        """The float model in `folder`, calibrated on three batches and quantized."""
        config = SmoothQuantConfig(dataset=[self.batch(seed) for seed in range(3)], **arguments)
        return self.model_class.from_pretrained(folder, quantization_config=config)

    def outputs(self, model: PreTrainedModel, seed: int = 9) -> list[torch.Tensor]:
        """The float tensors that `model` returns for a batch that it wasn't calibrated on, caches aside."""
        without_cache = {"use_cache": False} if getattr(model.config, "use_cache", False) else {}
        with torch.no_grad():
            values = model(**self.batch(seed), **without_cache).to_tuple()
        tensors = [value for value in values if isinstance(value, torch.Tensor) and value.is_floating_point()]
        assert tensors and all(value.isfinite().all() for value in tensors)
        return tensors


def names(prefix: str, leaves: str) -> set[str]:
    """`prefix.leaf` for each of the words in `leaves`."""
    return {f"{prefix}.{leaf}" for leaf in leaves.split()}


def star(name: str) -> str:
    """`name` with `*` for each number between dots."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name)


def int8_linears(model: PreTrainedModel) -> dict[str, Int8Linear]:
    return {name: module for name, module in model.named_modules() if isinstance(module, Int8Linear)}


def check_quantized(architecture: Architecture, folder: Path) -> None:
    """Quantizes, static and dynamic; checks what became of each module, the outputs, and that saving keeps them."""
    floats = architecture.build()
    floats.save_pretrained(folder / "float")
    reference = architecture.outputs(floats)
    for activation, bound in zip(("dynamic", "static"), reversed(architecture.min_sqnr_db), strict=True):
        model = architecture.quantize(folder / "float", activation=activation)
        values = architecture.outputs(model)
        assert min(map(sqnr_db, reference, values)) > bound
        report = quantization_report(model)
        assert {star(name) for name in int8_linears(model)} == architecture.quantized
        folded = {star(group.names[0]): star(group.folded_into) for group in report.groups if group.folded_into}
        assert folded == architecture.folded
        assert {star(name): reason for name, reason in report.kept.items()} == architecture.kept
        for group in report.groups:  # nothing is multiplied at run time where factors were folded
            weights = [model.get_submodule(name).weight for name in group.names]
            assert all((weight.act_pre_scale is None) == bool(group.folded_into) for weight in weights)

    model.save_pretrained(folder / "int8")
    again = architecture.model_class.from_pretrained(folder / "int8")
    assert all(torch.equal(one, other) for one, other in zip(values, architecture.outputs(again), strict=True))
    assert quantization_report(again) == report


def check_compiled(architecture: Architecture, folder: Path, **arguments) -> None:
    """Compiles; checks that every call of a quantized Linear became one fused kernel, and the outputs."""
    architecture.build().save_pretrained(folder)
    model = architecture.quantize(folder, **arguments)
    calls = []
    handles = [linear.register_forward_hook(lambda *_: calls.append(1)) for linear in int8_linears(model).values()]
    values = architecture.outputs(model)
    for handle in handles:
        handle.remove()
    compiled = hf_smoothquant.compile(model)
    worst = min(map(sqnr_db, values, architecture.outputs(compiled)))
    assert worst > 25
    assert not compiled.fusion_coverage.unfused
    assert compiled.fusion_coverage.fused == (0 if cpu.SATURATES else len(calls))


def compile_cases(architectures: Mapping[str, Architecture]) -> list:
    """Every name with either activation, for the slow tests.

    Known: where factors are folded and several Linears read one input, Inductor keeps one dynamic quantization for them
    all, and torchao's pattern (0.18) wants one for each. They stay unfused, and `compile` warns of them.
    """
    shared = {"OPT", "Llama", "Qwen3", "Mixtral", "T5", "T5 v1.1", "Whisper", "ViT", "CLIP"}
    unfused = pytest.mark.xfail(strict=True, reason="a dynamic quantization that several folded Linears share")
    dynamic = [pytest.param(name, "dynamic", marks=[unfused] if name in shared else []) for name in architectures]
    return [*((name, "static") for name in architectures), *dynamic]
