"""This package's modes: float and int8 models in PyTorch, compiled or eager."""

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import protocol
import torch
from torch._inductor import config as inductor_config
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


def load(artifact: Path, options: dict[str, Any]) -> "TorchEngine":
    """Loads the checkpoint and compiles it as the mode says."""
    torch.set_num_threads(options["threads"])
    model = AutoModel.from_pretrained(artifact, dtype=DTYPES.get(options["kind"], torch.float32)).eval()
    return TorchEngine(model, options)


class TorchEngine:
    """A PyTorch model behind the protocol."""

    def __init__(self, model: torch.nn.Module, options: dict[str, Any]):
        self.facts: dict[str, Any] = {}
        settings = {"max_autotune": options["autotune"], "cpp_wrapper": options["cpp"]}
        autocast = torch.bfloat16 if options["autocast"] else None
        dynamic = True if options["varies"] else None
        self._scope = contextlib.nullcontext
        if options["eager"]:
            self._model = model
            if autocast is not None:
                self._scope = lambda: torch.autocast("cpu", autocast)
        elif options["kind"] in DTYPES:
            self._model = torch.compile(model, dynamic=dynamic)
            self._scope = lambda: inductor_config.patch(freezing=True, **settings)
        else:
            self._model = hf_smoothquant.compile(model, dynamic=dynamic, autocast=autocast, options=settings)

    def prepare(self, ids: np.ndarray) -> dict[str, torch.Tensor]:
        return as_inputs(ids)

    @torch.no_grad()
    def run(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        with self._scope():
            return self._model(**inputs).last_hidden_state

    def to_numpy(self, output: torch.Tensor) -> np.ndarray:
        return output.float().numpy()


def as_inputs(ids: np.ndarray) -> dict[str, torch.Tensor]:
    """What a tokenizer gives for texts of one length: ids and a mask of ones, `[batch, length]`, int64."""
    input_ids = torch.from_numpy(ids)
    return {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}


if __name__ == "__main__":
    protocol.main(convert, load)
