"""The model's own tokenizer, image processor, feature extractor or processor of several kinds of input."""

from typing import Any

from transformers import (
    AutoFeatureExtractor,
    AutoImageProcessor,
    AutoProcessor,
    AutoTokenizer,
    PreTrainedModel,
    ProcessorMixin,
)

from hf_smoothquant.config import SmoothQuantConfig

# What reads which kind of sample: the first that can be loaded.
CLASSES = {
    "texts": (AutoTokenizer,),
    "images": (AutoImageProcessor,),
    "audio": (AutoFeatureExtractor,),
    "images with texts": (AutoProcessor,),
    "audio with texts": (AutoProcessor, AutoFeatureExtractor),
}


def load_processor(kind: str, config: SmoothQuantConfig, model: PreTrainedModel) -> Any:
    """What turns samples of a `kind` (a key of `CLASSES`) into inputs: `config.tokenizer`, else the model's own.

    Raises:
        `ValueError`: there is none; says how to give one.
    """
    if config.tokenizer is not None and not isinstance(config.tokenizer, str):
        return config.tokenizer
    source = config.tokenizer or model.name_or_path
    # The revision that the weights came from, where they came from the hub.
    revision = None if config.tokenizer else getattr(model.config, "_commit_hash", None)
    for index, auto_class in enumerate(CLASSES[kind]):
        try:
            return auto_class.from_pretrained(source, **({"revision": revision} if revision else {}))
        except Exception as error:  # each class fails in its own way when its files are absent
            if index < len(CLASSES[kind]) - 1:
                continue
            what = "tokenizer" if kind == "texts" else "processor"
            raise ValueError(
                f"No {what} found in {source!r}, and calibration on {kind} needs one. Pass "
                f"SmoothQuantConfig(tokenizer={auto_class.__name__}.from_pretrained(...)), or batches of tensors as "
                "dataset=..."
            ) from error


def tokenizer_of(processor: Any) -> Any:
    """The tokenizer in a processor of several kinds of input; a tokenizer itself; else `None`."""
    if isinstance(processor, ProcessorMixin):
        return getattr(processor, "tokenizer", None)
    return processor if hasattr(processor, "convert_ids_to_tokens") else None
