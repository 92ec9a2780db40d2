"""CTranslate2: float32 and int8 (dynamic activations). Runs in its own venv."""

from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import protocol


def convert(export: Path, artifact: Path, options: dict[str, Any]) -> None:
    """Converts with the loader that CTranslate2 has for the model's class."""
    import torch
    from ctranslate2.converters import transformers as converters
    from transformers import AutoModel

    model = AutoModel.from_pretrained(export, dtype=torch.float32).eval()
    config = model.config
    config.position_embedding_type = "absolute"  # transformers 5 has no other and no such field; 4.8 asks for it
    loader = converters._MODEL_LOADERS.get(type(config).__name__)
    if loader is None:
        raise ValueError(f"CTranslate2 has no loader for {type(config).__name__}.")
    spec = loader.get_model_spec(model)
    spec.register_vocabulary([str(index) for index in range(config.vocab_size)])
    spec.config.unk_token = "0"
    spec.config.layer_norm_epsilon = getattr(config, "layer_norm_eps", 1e-12)
    spec.validate()
    spec.optimize(quantization={"int8": "int8"}.get(options["precision"]))
    spec.save(str(artifact))


def load(artifact: Path, options: dict[str, Any]) -> "CTranslate2Engine":
    """Opens the encoder with the given threads."""
    return CTranslate2Engine(artifact, options)


class CTranslate2Engine:
    """An encoder behind the protocol."""

    def __init__(self, artifact: Path, options: dict[str, Any]):
        compute_type = {"int8": "int8", "fp32": "float32"}[options["precision"]]
        self._encoder = ctranslate2.Encoder(
            str(artifact), device="cpu", compute_type=compute_type, inter_threads=1, intra_threads=options["threads"]
        )
        self.facts: dict[str, Any] = {"compute_type": self._encoder.compute_type}

    def prepare(self, ids: np.ndarray) -> list[list[int]]:
        return ids.tolist()

    def run(self, inputs: list[list[int]]) -> Any:
        return self._encoder.forward_batch(inputs)

    def to_numpy(self, output: Any) -> np.ndarray:
        return np.array(output.last_hidden_state, dtype=np.float32)


if __name__ == "__main__":
    protocol.main(convert, load)
