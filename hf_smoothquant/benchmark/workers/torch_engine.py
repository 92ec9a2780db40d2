"""What the workers that run PyTorch share. Not for other engines' processes: it would count in their memory."""

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch


class TorchEngine:
    """A PyTorch model behind the protocol.

    Args:
        model (`Callable`): called with the inputs; compiled or eager.
        scope (`Callable`, *optional*): makes the context that each call runs in.
    """

    def __init__(self, model: Callable[..., Any], scope: Callable[[], AbstractContextManager] = contextlib.nullcontext):
        self.facts: dict[str, Any] = {}
        self._model = model
        self._scope = scope

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
