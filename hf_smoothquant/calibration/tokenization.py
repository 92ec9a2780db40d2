"""From texts to batches of token ids: the model's own tokenizer, length buckets, padding per batch."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from hf_smoothquant.config import SmoothQuantConfig


def tokenize(
    texts: Sequence[str | tuple[str, str]], tokenizer: Any, config: SmoothQuantConfig, model: PreTrainedModel
) -> list[dict[str, torch.Tensor]]:
    """Token ids, masks and whatever else the tokenizer gives for each text, `[length]` each, cut to what fits.

    Raises:
        `ValueError`: what fits are the tokenizer's special tokens alone.
    """
    max_length = text_length(tokenizer, config, model)
    has_pairs = any(not isinstance(text, str) for text in texts)
    special = tokenizer.num_special_tokens_to_add(has_pairs) if hasattr(tokenizer, "num_special_tokens_to_add") else 0
    if max_length <= special:  # tokenizers wouldn't cut at all
        raise ValueError(
            f"Cut to {max_length} tokens, the texts of the calibration dataset leave no room for words: the tokenizer "
            f"adds {special} special tokens. Set SmoothQuantConfig(max_length=...) to more than {special}; the "
            f"model and its tokenizer may set the limit too."
        )
    samples = []
    for text in texts:
        pair = (text,) if isinstance(text, str) else tuple(text)
        encoding = tokenizer(*pair, truncation=True, max_length=max_length, return_attention_mask=True)
        samples.append({name: torch.tensor(ids) for name, ids in encoding.items()})
    return samples


def batch_samples(samples: list[dict[str, torch.Tensor]], batch_size: int) -> list[dict[str, torch.Tensor]]:
    """Batches of samples of similar length, padded on the right to the longest of each batch, `[batch, length]`.

    Padding is zeros: the attention mask hides what stands there, and a decoder's tokenizer may have no padding token.
    """
    samples = sorted(samples, key=lambda sample: len(sample["input_ids"]))
    batches = (samples[i : i + batch_size] for i in range(0, len(samples), batch_size))
    return [
        {name: pad_sequence([sample[name] for sample in batch], batch_first=True) for name in batch[0]}
        for batch in batches
    ]


def text_length(tokenizer: Any, config: SmoothQuantConfig, model: PreTrainedModel) -> int:
    """The length in tokens at which texts are cut: `config.max_length`, or less where tokenizer or model take less."""
    limits = [config.max_length, getattr(tokenizer, "model_max_length", config.max_length)]
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if isinstance(positions, int) and positions > 2:
        limits.append(positions - 2)  # RoBERTa and its kin start counting at 2
    return min(limits)
