"""This package's modes: float and int8 models in PyTorch, compiled or eager."""

import contextlib
import json
from pathlib import Path
from typing import Any

import protocol
import torch
from torch._inductor import config as inductor_config
from torch_engine import TorchEngine, as_inputs
from transformers import AutoModel

import hf_smoothquant
from hf_smoothquant import SmoothQuantConfig

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def convert(export: Path, artifact: Path, options: dict[str, Any]) -> None:
    """Saves the model in the mode's weights: an ordinary checkpoint."""
    kind = options["kind"]
    if kind in DTYPES:
        model = AutoModel.from_pretrained(export, dtype=DTYPES[kind])
    else:
        (calibration,) = protocol.load_ids(export / "calibration.npz")
        dataset = [as_inputs(ids[None]) for ids in calibration]
        config = SmoothQuantConfig(activation=kind, dataset=dataset)
        model = AutoModel.from_pretrained(export, dtype=torch.float32, quantization_config=config)
    model.save_pretrained(artifact)
    (artifact / "mode.json").write_text(json.dumps(options))


def load(artifact: Path, options: dict[str, Any]) -> TorchEngine:
    """Loads the checkpoint and compiles it as the mode says."""
    torch.set_num_threads(options["threads"])
    model = AutoModel.from_pretrained(artifact, dtype=DTYPES.get(options["kind"], torch.float32)).eval()
    settings = {"max_autotune": options["autotune"], "cpp_wrapper": options["cpp"]}
    autocast = torch.bfloat16 if options["autocast"] else None
    dynamic = True if options["varies"] else None
    if options["eager"]:
        return TorchEngine(model, (lambda: torch.autocast("cpu", autocast)) if autocast else contextlib.nullcontext)
    if options["kind"] in DTYPES:
        compiled = torch.compile(model, dynamic=dynamic)
        return TorchEngine(compiled, lambda: inductor_config.patch(freezing=True, **settings))
    return TorchEngine(hf_smoothquant.compile(model, dynamic=dynamic, autocast=autocast, options=settings))


if __name__ == "__main__":
    protocol.main(convert, load)
