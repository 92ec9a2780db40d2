"""The exported model as converters want it. Imported to convert only: engines are to run without PyTorch in memory."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel


class Hidden(torch.nn.Module):
    """The float32 model with one output, the last hidden states.

    Args:
        export (`Path`): folder with the model.
        kwargs: further ones of `from_pretrained`.
    """

    def __init__(self, export: Path, **kwargs: Any):
        super().__init__()
        self.model = AutoModel.from_pretrained(export, dtype=torch.float32, **kwargs).eval()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
