"""Images and audio as calibration samples: found in the elements of a dataset, turned into tensors by the processor."""

import inspect
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from hf_smoothquant.calibration.processors import load_processor, tokenizer_of
from hf_smoothquant.calibration.sources import ACCEPTED, row_text
from hf_smoothquant.calibration.tokenization import text_length
from hf_smoothquant.config import SmoothQuantConfig

# Inputs that processors make of one image or one recording, and their number of dimensions without that of the batch.
PROCESSED = {"pixel_values": 3, "input_features": 2, "input_values": 1}
MAX_SECONDS = 30  # Whisper's window; a whole lecture would fill the memory of a model that takes any length


@dataclass
class Media:
    """One image or recording, and the text that comes with it.

    Attributes:
        image (*optional*): a `PIL.Image.Image`, or an `np.ndarray`, `[height, width, channels]`.
        audio (`np.ndarray`, *optional*): `[length]`, float; one channel.
        sampling_rate (`int`, *optional*): of the audio, in Hz; where it isn't known, that of the model is assumed.
        text (`str` or a pair, *optional*): of the same row.
    """

    image: Any = None
    audio: np.ndarray | None = None
    sampling_rate: int | None = None
    text: Any = None


def is_processed(element: Any) -> bool:
    """Whether `element` is a row that a processor has made tensors (or lists) of already."""
    return isinstance(element, Mapping) and any(
        name in element and np.ndim(element[name]) == ndim for name, ndim in PROCESSED.items()
    )


def find_media(element: Any, columns: list[str] | None = None) -> Media | None:
    """The image or the audio in an element of a dataset: the element itself, or the first such column of a row.

    Args:
        element: a PIL image, an array (of 3 dimensions: an image; of 1 and floating: audio), a `dict` with `array` and
            `sampling_rate`, an audio decoder of `datasets`, or a row with one of these.
        columns (`list[str]`, *optional*): the row's columns of text.
    """
    if _is_image(element):
        return Media(image=element)
    if hasattr(element, "get_all_samples") or (isinstance(element, Mapping) and "array" in element):
        return Media(audio=np.asarray(element["array"]), sampling_rate=element["sampling_rate"])
    if isinstance(element, np.ndarray) and element.ndim == 1 and np.issubdtype(element.dtype, np.floating):
        return Media(audio=element)
    if not isinstance(element, Mapping):
        return None
    # Segmentation masks and depth maps are images too: the one called "image" goes first.
    for name in sorted(element, key=lambda name: name != "image"):
        value = np.asarray(element[name]) if name == "audio" and isinstance(element[name], list) else element[name]
        media = find_media(value) if not isinstance(value, Mapping) or "array" in value else None
        if media is not None:
            has_text = columns is not None or any(isinstance(value, str) for value in element.values())
            media.text = row_text(element, columns) if has_text else None
            return media
    return None


def process_media(
    elements: Iterable[Any], config: SmoothQuantConfig, model: PreTrainedModel
) -> list[dict[str, torch.Tensor]]:
    """The inputs of `model` for each image or recording, without the dimension of the batch.

    A text goes with its image where the model reads both (CLIP), and to the decoder of a model that transcribes
    (Whisper). Audio is cut at 30 seconds.

    Raises:
        `TypeError`: an element has neither image nor audio.
        `ValueError`: no processor is found, or it doesn't take the element.
    """
    reads = inspect.signature(model.forward).parameters
    samples, processor = [], None
    for index, element in enumerate(elements):
        if is_processed(element):
            names = [name for name in element if name in (*PROCESSED, "input_ids", "attention_mask")]
            samples.append({name: torch.as_tensor(element[name]) for name in names})
            continue
        media = find_media(element, config.text_columns)
        if media is None:
            raise TypeError(f"Sample {index} of the calibration dataset has no image and no audio. {ACCEPTED}")
        if not {"input_ids", "decoder_input_ids"} & reads.keys():
            media.text = None
        if processor is None:
            kind = ("audio" if media.image is None else "images") + ("" if media.text is None else " with texts")
            processor = load_processor(kind, config, model)
        try:
            inputs = _from_image if media.audio is None else _from_audio
            samples.append({name: value[0] for name, value in inputs(media, processor, config, model).items()})
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{type(processor).__name__} can't process sample {index} of the calibration dataset: {error}"
            ) from error
    return samples


def batch_media(samples: list[dict[str, torch.Tensor]], batch_size: int) -> list[dict[str, torch.Tensor]]:
    """Batches of samples of the very same shapes: padded frames couldn't be told from real ones behind convolutions."""
    by_shapes: dict[tuple, list[dict[str, torch.Tensor]]] = defaultdict(list)
    for sample in samples:
        by_shapes[tuple((name, value.shape) for name, value in sample.items())].append(sample)
    return [
        {name: torch.stack([sample[name] for sample in batch]) for name in batch[0]}
        for alike in by_shapes.values()
        for batch in (alike[i : i + batch_size] for i in range(0, len(alike), batch_size))
    ]


def _is_image(element: Any) -> bool:
    library = sys.modules.get("PIL.Image")  # an object of it can't exist unless it was imported
    if isinstance(element, np.ndarray):
        return element.ndim == 3
    return library is not None and isinstance(element, library.Image)


def _from_image(media: Media, processor: Any, config: SmoothQuantConfig, model: PreTrainedModel) -> Mapping:
    image = media.image
    if hasattr(image, "convert") and getattr(model.config, "num_channels", 3) == 3:
        image = image.convert("RGB")  # most data sets of photographs have some in grey
    tokenizer = tokenizer_of(processor)
    if media.text is None or tokenizer is None:
        return getattr(processor, "image_processor", processor)(image, return_tensors="pt")
    length = text_length(tokenizer, config, model)
    return processor(images=image, text=media.text, truncation=True, max_length=length, return_tensors="pt")


def _from_audio(media: Media, processor: Any, config: SmoothQuantConfig, model: PreTrainedModel) -> Mapping:
    extractor = getattr(processor, "feature_extractor", processor)
    rate = media.sampling_rate or extractor.sampling_rate
    if rate != extractor.sampling_rate:
        raise ValueError(
            f"it was recorded at {rate} Hz and the model takes {extractor.sampling_rate}. Resample it, e.g. "
            f'dataset.cast_column("audio", datasets.Audio(sampling_rate={extractor.sampling_rate})).'
        )
    inputs = extractor(media.audio[: MAX_SECONDS * rate], sampling_rate=rate, return_tensors="pt")
    tokenizer = tokenizer_of(processor)
    if media.text is not None and getattr(tokenizer, "vocab_size", 0) and model.config.is_encoder_decoder:
        length = text_length(tokenizer, config, model)
        ids = tokenizer(media.text, truncation=True, max_length=length, return_tensors="pt")["input_ids"]
        return {**inputs, "decoder_input_ids": ids}
    return inputs
