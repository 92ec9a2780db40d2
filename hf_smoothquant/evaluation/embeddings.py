"""Sentence embeddings: how far int8 moves them, and whether the order of similarities stays."""

from collections.abc import Sequence
from typing import Any

import torch


@torch.no_grad()
def embed(model: Any, tokenizer: Any, texts: Sequence[str], max_length: int = 256, batch_size: int = 32):
    """Mean of the last hidden states over each text's tokens, normalized.

    Args:
        model: returns a `last_hidden_state`.
        tokenizer: of the model.
        texts (`Sequence[str]`): the texts.
        max_length, batch_size (`int`): tokens at which texts are cut; texts in a batch, which is padded.

    Returns:
        `torch.Tensor`: `[texts, hidden]`, float32, rows of length 1.
    """
    order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
    rows: list[torch.Tensor | None] = [None] * len(texts)
    for first in range(0, len(order), batch_size):
        chosen = order[first : first + batch_size]
        inputs = tokenizer(
            [texts[index] for index in chosen],
            padding=True,
            truncation=True,
            max_length=max_length,
            return_tensors="pt",
        )
        states, mask = model(**inputs).last_hidden_state.float(), inputs["attention_mask"][..., None]
        means = (states * mask).sum(1) / mask.sum(1)
        for index, row in zip(chosen, torch.nn.functional.normalize(means, dim=1), strict=True):
            rows[index] = row
    return torch.stack(rows)


def agreement(reference: torch.Tensor, embeddings: torch.Tensor) -> dict[str, float]:
    """Cosines of each text's two embeddings, and the rank correlation of all similarities between texts.

    Args:
        reference, embeddings (`torch.Tensor`): `[texts, hidden]`, rows of length 1.

    Returns:
        `mean_cosine` and `min_cosine` over texts; `spearman` of the cosines of all pairs of texts.
    """
    cosines = (reference * embeddings).sum(1)
    above = torch.triu_indices(len(reference), len(reference), offset=1)
    similarities = [(rows @ rows.T)[above[0], above[1]] for rows in (reference, embeddings)]
    ranks = torch.stack([values.argsort().argsort() for values in similarities]).double()
    return {
        "mean_cosine": cosines.mean().item(),
        "min_cosine": cosines.min().item(),
        "spearman": torch.corrcoef(ranks)[0, 1].item(),
    }
