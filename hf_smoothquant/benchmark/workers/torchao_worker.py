"""torchao's own int8 flows, compiled by TorchInductor: SmoothQuant static and dynamic, and the stock dynamic W8A8."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import protocol
import torch
from torch._inductor import config as inductor_config
from torch_engine import TorchEngine, as_inputs
from torchao.prototype.smoothquant import SmoothQuantConfig
from torchao.quantization import (
    Int8DynamicActivationInt8WeightConfig,
    Int8StaticActivationInt8WeightConfig,
    PerRow,
    PerTensor,
    quantize_,
)
from transformers import AutoConfig, AutoModel, TorchAoConfig

# Importing it registers the int8 fusion patterns. torchao 0.18's example doesn't, and its int8 models then run unfused.
FUSIONS = "torchao.quantization.pt2e.quantizer.x86_inductor_quantizer"


def convert(export: Path, artifact: Path, options: dict[str, Any]) -> None:
    """Quantizes and saves the weights."""
    if options["flow"] == "stock":
        config = TorchAoConfig(Int8DynamicActivationInt8WeightConfig(version=2))
        AutoModel.from_pretrained(export, dtype=torch.float32, quantization_config=config).save_pretrained(artifact)
        return
    model = AutoModel.from_pretrained(export, dtype=torch.float32).eval()
    (calibration,) = protocol.load_ids(export / "calibration.npz")
    smoothquant(model, calibration, options["flow"].removeprefix("smoothquant-"))
    model.config.save_pretrained(artifact)
    torch.save(model.state_dict(), artifact / "state_dict.pt")


@torch.no_grad()
def smoothquant(model: torch.nn.Module, calibration: np.ndarray, activation: str) -> None:
    """torchao's SmoothQuant at its default strength, in place.

    Where torchao 0.18 would fail it is helped: Linears without data are left out (an assertion otherwise), and each
    Linear gets a config of its own, since a static one keeps the scale of the first.
    """

    def config(step: str) -> SmoothQuantConfig:
        if activation == "static":
            base = Int8StaticActivationInt8WeightConfig(granularity=[PerTensor(), PerRow()])
        else:
            base = Int8DynamicActivationInt8WeightConfig(version=2)
        return SmoothQuantConfig(base, step)

    quantize_(model, config("prepare"))
    for ids in calibration:
        model(**as_inputs(ids[None]))
    for name, module in list(model.named_modules()):
        observer = getattr(module, "obs", None)
        if observer is None:
            continue
        if observer.inputs:
            quantize_(model, config("convert"), lambda _, full_name, name=name: full_name == name)
        else:
            module.__class__ = torch.nn.Linear
            module.forward = torch.nn.Linear.forward.__get__(module)


def load(artifact: Path, options: dict[str, Any]) -> TorchEngine:
    """Loads the weights and compiles with freezing, and max_autotune and cpp_wrapper as the options say."""
    torch.set_num_threads(options["threads"])
    importlib.import_module(FUSIONS)
    if options["flow"] == "stock":
        model = AutoModel.from_pretrained(artifact).eval()
    else:
        model = AutoModel.from_config(AutoConfig.from_pretrained(artifact)).eval()
        model.load_state_dict(torch.load(artifact / "state_dict.pt", weights_only=False), assign=True)
    compiled = torch.compile(model, dynamic=True if options["varies"] else None)
    settings = {"freezing": True, "max_autotune": options["autotune"], "cpp_wrapper": options["cpp"]}
    return TorchEngine(compiled, lambda: inductor_config.patch(settings))


if __name__ == "__main__":
    protocol.main(convert, load)
