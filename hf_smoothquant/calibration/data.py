"""Calibration data: from the elements of any source to batches of tensors."""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from math import ceil
from operator import length_hint
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.utils import logging

from hf_smoothquant.calibration.media import batch_media, find_media, is_processed, process_media
from hf_smoothquant.calibration.processors import load_processor, tokenizer_of
from hf_smoothquant.calibration.sources import ACCEPTED, Text, open_source, row_text
from hf_smoothquant.calibration.tokenization import batch_samples, tokenize
from hf_smoothquant.config import SmoothQuantConfig

logger = logging.get_logger(__name__)

# What a tuple of tensors means, by position: the order in which encoders take their arguments.
TUPLE_NAMES = ("input_ids", "attention_mask", "token_type_ids")


class CalibrationData:
    """Batches to calibrate on, counted as they are used.

    Iterating gives mappings of tensors, `[batch, ...]` each. Texts are sorted by length, cut into batches and
    padded per batch, on the right: there padding moves no position of a real token.

    Attributes:
        name (`str`): what the data is, for the checkpoint: `"builtin"` or the type of the user's object.
        num_batches (`int`): number of batches that are expected.
        num_samples (`int`): what has been iterated over so far.
        num_tokens (`int` or `None`): the same in tokens, padding not counted; `None` where there are none (images).
    """

    def __init__(self, name: str, batches: Iterable[Mapping[str, torch.Tensor]], num_batches: int, max_samples: int):
        self.name = name
        self.num_batches = num_batches
        self.num_samples = 0
        self.num_tokens: int | None = None
        self._batches = batches
        self._max_samples = max_samples

    def __iter__(self) -> Iterator[Mapping[str, torch.Tensor]]:
        for batch in self._batches:
            left = self._max_samples - self.num_samples
            if left <= 0:
                return
            batch = {key: value[:left] if isinstance(value, torch.Tensor) else value for key, value in batch.items()}
            self.num_samples += len(_first_tensor(batch))
            tokens = _count_tokens(batch)
            if tokens is not None:
                self.num_tokens = (self.num_tokens or 0) + tokens
            yield batch

    def describe(self) -> dict[str, Any]:
        """The record kept in config.json: no text, no path."""
        return {"dataset": self.name, "num_samples": self.num_samples, "num_tokens": self.num_tokens}


def calibration_data(config: SmoothQuantConfig, model: PreTrainedModel) -> CalibrationData:
    """Prepares `config.dataset` for `model`.

    Raises:
        `TypeError`: the dataset, or one of its elements, is of a kind that isn't accepted.
        `ValueError`: it can't be loaded, is empty, holds only empty texts, or needs a tokenizer and none is found.
    """
    length = length_hint(config.dataset)  # before an iterator loses its first element; 0 where nobody knows
    name, elements = open_source(config.dataset, config.dataset_kwargs or {}, config.seed)
    first = next(elements, None)
    if first is None:
        raise ValueError(f"The calibration dataset ({name}) is empty. {ACCEPTED}")
    elements = chain([first], elements)
    if _is_batch(first) and not is_processed(first):
        num_batches = ceil(config.num_samples / len(_first_tensor(_as_batch(first))))
        num_batches = min(num_batches, length or num_batches)
        return CalibrationData(name, map(_as_batch, elements), num_batches, config.num_samples)
    elements = islice(elements, config.num_samples)
    make_batches = batch_samples
    if is_processed(first) or find_media(first, config.text_columns) is not None:
        samples, make_batches = process_media(elements, config, model), batch_media
    elif _is_tokenized(first):
        samples = [_as_sample(element, config.max_length) for element in elements]
    else:
        samples = _tokenize(_as_texts(elements, config.text_columns), config, model)
    if len(samples) < config.num_samples:
        logger.warning(f"Calibrating on {len(samples)} samples: fewer than num_samples={config.num_samples}.")
    batches = make_batches(samples, config.batch_size)
    return CalibrationData(name, batches, len(batches), config.num_samples)


def _first_tensor(batch: Mapping[str, Any]) -> torch.Tensor:
    return next(value for value in batch.values() if isinstance(value, torch.Tensor))


def _count_tokens(batch: Mapping[str, torch.Tensor]) -> int | None:
    """Token positions of a batch that aren't padding; `None` for one without tokens (images, audio).

    Only an `attention_mask` with an entry per position says what is padding. One by query (`[batch, 1, queries, keys]`,
    `[batch, queries, keys]`) says who attends to whom: every position counts then, as it does for the observer.
    """
    if "input_ids" in batch:
        positions = batch["input_ids"].shape
    elif "inputs_embeds" in batch:
        positions = batch["inputs_embeds"].shape[:-1]
    else:
        return None
    mask = batch.get("attention_mask")
    return int(mask.sum()) if mask is not None and mask.shape == positions else positions.numel()


def _is_batch(element: Any) -> bool:
    if isinstance(element, Mapping):
        return any(isinstance(value, torch.Tensor) and value.ndim > 1 for value in element.values())
    if isinstance(element, tuple | list):
        return bool(element) and all(isinstance(part, torch.Tensor) for part in element)
    return isinstance(element, torch.Tensor) and element.ndim > 1


def _as_batch(element: Any) -> Mapping[str, torch.Tensor]:
    if not _is_batch(element):
        raise TypeError(f"A calibration batch is a {type(element).__name__} without tensors in it. {ACCEPTED}")
    if isinstance(element, torch.Tensor):
        element = (element,)
    if not isinstance(element, Mapping):
        # Labels come last and have another shape.
        element = {
            name: part for name, part in zip(TUPLE_NAMES, element, strict=False) if part.shape == element[0].shape
        }
    return {key: value for key, value in element.items() if key != "labels"}


def _tokenize(texts: list[Text], config: SmoothQuantConfig, model: PreTrainedModel) -> list[dict[str, torch.Tensor]]:
    if "input_ids" not in inspect.signature(model.forward).parameters:
        raise ValueError(
            f"{type(model).__name__} doesn't read texts: give SmoothQuantConfig(dataset=...) images, audio or batches "
            f"of what its forward takes. {ACCEPTED}"
        )
    tokenizer = tokenizer_of(load_processor("texts", config, model))
    if tokenizer is None:
        raise ValueError(
            f"SmoothQuantConfig(tokenizer=...) is a {type(config.tokenizer).__name__}, and the calibration dataset "
            "holds texts: pass a tokenizer, or a processor with one."
        )
    return tokenize(texts, tokenizer, config, model)


def _is_tokenized(element: Any) -> bool:
    return isinstance(element, torch.Tensor) or (isinstance(element, Mapping) and "input_ids" in element)


def _as_sample(element: Any, max_length: int) -> dict[str, torch.Tensor]:
    """The columns of token ids and masks of one tokenized row, `[length]` each."""
    if not _is_tokenized(element):
        raise TypeError(f"A sample of the calibration dataset has no input_ids, unlike the first. {ACCEPTED}")
    if isinstance(element, torch.Tensor):
        element = {"input_ids": element}
    length = len(element["input_ids"])
    sample = {
        name: torch.as_tensor(value)[:max_length]
        for name, value in element.items()
        if name in TUPLE_NAMES and value is not None and len(value) == length
    }
    sample.setdefault("attention_mask", torch.ones_like(sample["input_ids"]))
    return sample


def _as_texts(elements: Iterable[Any], columns: list[str] | None) -> list[Text]:
    texts = []
    for index, element in enumerate(elements):
        if isinstance(element, Mapping):
            element = row_text(element, columns)
        is_pair = isinstance(element, tuple | list) and len(element) == 2
        if not isinstance(element, str) and not (is_pair and all(isinstance(part, str) for part in element)):
            raise TypeError(f"Sample {index} of the calibration dataset is a {type(element).__name__}. {ACCEPTED}")
        if "".join(element).strip():
            texts.append(element)
    if not texts:
        raise ValueError(f"All texts of the calibration dataset are empty. {ACCEPTED}")
    return texts
