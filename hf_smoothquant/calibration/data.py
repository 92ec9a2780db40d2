"""Calibration data: from what the user has (texts, pairs, batches, nothing) to batches of tensors."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from itertools import chain, islice
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.utils import logging

from hf_smoothquant.calibration.tokenization import load_tokenizer, tokenize
from hf_smoothquant.config import SmoothQuantConfig

logger = logging.get_logger(__name__)

Text = str | tuple[str, str]

ACCEPTED = (
    "Accepted: None (the built-in corpus), a list of texts, a list of (text, text) pairs, or an iterable of batches "
    "(dicts of tensors, BatchEncodings, or tensors of token ids), e.g. a DataLoader."
)


class CalibrationData:
    """Batches to calibrate on, counted as they are used.

    Iterating gives mappings of tensors, `[batch, length]` each. Texts are sorted by length, cut into batches and
    padded per batch, on the right: there padding moves no position of a real token.

    Attributes:
        name (`str`): what the data is, for the checkpoint: `"builtin"` or the type of the user's object.
        num_batches (`int` or `None`): number of batches, where it is known beforehand.
        num_samples, num_tokens (`int`): what has been iterated over so far, padding not counted.
    """

    def __init__(
        self, name: str, batches: Iterable[Mapping[str, torch.Tensor]], num_batches: int | None, max_samples: int
    ):
        self.name = name
        self.num_batches = num_batches
        self.num_samples = self.num_tokens = 0
        self._batches = batches
        self._max_samples = max_samples

    def __iter__(self) -> Iterator[Mapping[str, torch.Tensor]]:
        for batch in self._batches:
            left = self._max_samples - self.num_samples
            if left <= 0:
                return
            batch = {key: value[:left] if isinstance(value, torch.Tensor) else value for key, value in batch.items()}
            first = next(value for value in batch.values() if isinstance(value, torch.Tensor))
            mask = batch.get("attention_mask")
            self.num_samples += len(first)
            self.num_tokens += int(mask.sum()) if mask is not None else first.shape[:2].numel()
            yield batch

    def describe(self) -> dict[str, Any]:
        """The record kept in config.json: no text, no path."""
        return {"dataset": self.name, "num_samples": self.num_samples, "num_tokens": self.num_tokens}


def calibration_data(config: SmoothQuantConfig, model: PreTrainedModel) -> CalibrationData:
    """Prepares `config.dataset` for `model`.

    Raises:
        `TypeError`: the dataset, or its first element, is of a kind that isn't accepted.
        `ValueError`: it is empty, or holds only empty texts, or needs a tokenizer and none is found.
    """
    dataset = config.dataset
    if dataset is None:
        return _from_texts("builtin", builtin_corpus(), config, model)
    name = type(dataset).__name__
    if isinstance(dataset, str | bytes | Mapping) or not isinstance(dataset, Iterable):
        raise TypeError(f"SmoothQuantConfig(dataset=...) can't be a {name}. {ACCEPTED}")
    elements = iter(dataset)
    first = next(elements, None)
    if first is None:
        raise ValueError(f"The calibration dataset ({name}) is empty. {ACCEPTED}")
    rest = chain([first], elements)
    if _is_text(first):
        texts = list(islice(rest, config.num_samples))
        return _from_texts(name, texts, config, model)
    if isinstance(first, Mapping | torch.Tensor):
        return CalibrationData(name, map(_as_batch, rest), None, config.num_samples)
    raise TypeError(f"The calibration dataset ({name}) holds elements of type {type(first).__name__}. {ACCEPTED}")


def builtin_corpus() -> list[Text]:
    """The corpus shipped with the package: prose and (question, passage) pairs in several languages.

    Its order is such that the first N samples have the mix of the whole; see `corpus/README.md` for its origin.
    """
    path = resources.files(__package__) / "corpus" / "builtin.jsonl"
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [record["text"] if "text" in record else (record["question"], record["context"]) for record in records]


def _is_text(element: Any) -> bool:
    is_pair = isinstance(element, tuple | list) and len(element) == 2 and all(isinstance(part, str) for part in element)
    return isinstance(element, str) or is_pair


def _as_batch(element: Any) -> Mapping[str, torch.Tensor]:
    batch = {"input_ids": element} if isinstance(element, torch.Tensor) else element
    if not isinstance(batch, Mapping) or not any(isinstance(value, torch.Tensor) for value in batch.values()):
        raise TypeError(f"A calibration batch is a {type(element).__name__} without tensors in it. {ACCEPTED}")
    return {key: value for key, value in batch.items() if key != "labels"}


def _from_texts(name: str, texts: Sequence[Text], config: SmoothQuantConfig, model: PreTrainedModel) -> CalibrationData:
    for index, text in enumerate(texts):
        if not _is_text(text):
            raise TypeError(
                f"Sample {index} of the calibration dataset is a {type(text).__name__}, not a text. {ACCEPTED}"
            )
    texts = [text for text in texts if (text if isinstance(text, str) else "".join(text)).strip()]
    if not texts:
        raise ValueError(f"All texts of the calibration dataset are empty. {ACCEPTED}")
    if len(texts) < config.num_samples:
        logger.warning(
            f"Calibrating on {len(texts)} samples: the dataset has fewer than num_samples={config.num_samples}."
        )
    batches = tokenize(texts[: config.num_samples], load_tokenizer(config, model), config, model)
    return CalibrationData(name, batches, len(batches), config.num_samples)
