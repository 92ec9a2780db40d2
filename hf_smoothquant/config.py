"""`SmoothQuantConfig`: what the user asks for, and what a checkpoint remembers of it."""

import copy
import re
from numbers import Integral, Real
from typing import Any

from transformers.utils import logging
from transformers.utils.quantization_config import QuantizationConfigMixin

logger = logging.get_logger(__name__)

QUANT_METHOD = "smoothquant"
FORMAT_VERSION = 1
ACTIVATIONS = ("static", "dynamic", "none")
WEIGHT_GRANULARITIES = ("row", "tensor")
ACTIVATION_GRANULARITIES = {"static": ("tensor",), "dynamic": ("token", "tensor"), "none": ()}
DEFAULT_ALPHA = 0.85

# Objects of this process: they never reach config.json and are shared, not copied, with the config.
_RUNTIME_ONLY = ("dataset", "dataset_kwargs", "text_columns", "tokenizer")


class SmoothQuantConfig(QuantizationConfigMixin):
    """Asks `from_pretrained` for a SmoothQuant W8A8 model (https://arxiv.org/abs/2211.10438).

    Weights become int8 per output channel; activations int8 per tensor with a scale from calibration (`"static"`) or
    per token with a scale found at run time (`"dynamic"`).

    Args:
        activation (`str`, *optional*, defaults to `"static"`):
            `"static"` (fastest), `"dynamic"` (closer to float), or `"none"`: int8 weights only, inputs stay in float.
            That needs no calibration and saves memory, not time.
        weight_granularity (`str`, *optional*, defaults to `"row"`):
            A weight scale per output channel (`"row"`) or one for the whole weight (`"tensor"`).
        activation_granularity (`str`, *optional*):
            Of dynamic scales: per `"token"` (the default) or one per `"tensor"`. A static scale is per tensor.
        symmetric (`bool`, *optional*, defaults to `True`):
            Of activations; weights always are. `False` gives them a zero point: up to twice as fine a scale for inputs
            that are mostly of one sign, after GELU or ReLU. With static activations it costs next to nothing.
        alpha (`float`, `str` or `dict`, *optional*, defaults to 0.85):
            Smoothing strength in [0, 1]: how much of the activations' outliers moves into the weights. 0 levels the
            weights alone, 1 the activations alone. The paper's 0.5 is for weights quantized per tensor, too; with a
            scale per row they bear more: on fine-tuned BERTs 0.85 gave 10 to 15 dB less noise in the static logits.
            `"auto"` searches for each group the value with the least output error on 128 real rows. A dict gives a
            number or `"auto"` by module name or `"re:"` pattern; the first that matches a Linear of the group decides,
            and where none does, 0.85.
        dataset (*optional*):
            What to calibrate on: `None` for the built-in corpus; a hub id (read as a stream), a local csv, tsv, json,
            jsonl, parquet or txt file or a folder; a list of texts, of (text, text) pairs, of dicts, of PIL images or
            of arrays of audio (`[length]`, float, at the model's sampling rate; or dicts of `array` and
            `sampling_rate`); a `datasets.Dataset` with columns of these, processed or not; or an iterable of batches
            (`dict`s of tensors, `BatchEncoding`s, tensors of token ids, tuples of tensors), e.g. a `DataLoader`.
        dataset_kwargs (`dict`, *optional*):
            Arguments of `datasets.load_dataset` for a hub id, file or folder: `name`, `split` (default `"train"`), ...
        text_columns (`list[str]`, *optional*):
            The one or two columns of a table to take as text; found by themselves where that is clear.
        tokenizer (tokenizer, image processor, feature extractor, processor or `str`, *optional*):
            What turns texts, images or audio into the model's inputs, or its name or folder; the model's own by
            default. Not used when `dataset` holds tensors.
        num_samples (`int`, *optional*, defaults to 128):
            How many samples of the dataset to use at most.
        max_length (`int`, *optional*, defaults to 512):
            Length in tokens at which texts are cut (less where the model takes less).
        batch_size (`int`, *optional*, defaults to 8):
            Texts per calibration batch. It changes the time, and the result by float rounding only.
        seed (`int`, *optional*, defaults to 0):
            Of the shuffling of `datasets` objects.
        fold (`bool`, *optional*, defaults to `True`):
            Whether to move smoothing factors into the module before a Linear, which saves the multiplication at run
            time: a norm (pre-norm models) or another Linear (value before the attention's output, up before down, or
            one before ReLU) whose output nothing else reads. Checked on a real batch, and only done where exact.
            `False` keeps the outputs of all modules as they were: for adapters (PEFT) trained on the float model.
        fallback (`dict`, *optional*):
            A budget for accuracy, judged by the error of the model's outputs on every eighth calibration sample, which
            is held out: `{"min_sqnr_db": 20}` moves the Linears that disturb the outputs most from static to dynamic or
            to float until their signal-to-noise ratio is 20 dB; `{"max_layers": 4}` moves at most the worst four. With
            both, both hold. `"to": "dynamic"` or `"to": "float"` allows only that.
        modules_to_not_convert (`list[str]`, *optional*):
            Linears to leave in float, besides those that always stay so (tied weights, output embeddings, the model's
            own `_keep_in_fp32_modules`): names, parts of names between dots, or `"re:"` patterns searched in the full
            name.
        min_features (`int`, *optional*, defaults to 32):
            Linears with fewer input or output features stay in float: a head of 2 or 3 classes gains nothing from int8.
            1 converts them too.
        calibration (`dict`, *optional*):
            Written by this package: which data the checkpoint was calibrated on. Not an argument of yours.

    Raises:
        `TypeError`, `ValueError`: an argument of the wrong type or out of range; the message names it and what is
            accepted.
    """

    def __init__(
        self,
        activation: str = "static",
        weight_granularity: str = "row",
        activation_granularity: str | None = None,
        symmetric: bool = True,
        alpha: float | str | dict[str, float | str] = DEFAULT_ALPHA,
        dataset: Any = None,
        dataset_kwargs: dict[str, Any] | None = None,
        text_columns: list[str] | None = None,
        tokenizer: Any = None,
        num_samples: int = 128,
        max_length: int = 512,
        batch_size: int = 8,
        seed: int = 0,
        fold: bool = True,
        fallback: dict[str, Any] | None = None,
        modules_to_not_convert: list[str] | None = None,
        min_features: int = 32,
        calibration: dict[str, Any] | None = None,
    ):
        self.quant_method = QUANT_METHOD
        self.format_version = FORMAT_VERSION
        self.activation = activation
        self.weight_granularity = weight_granularity
        self.activation_granularity = activation_granularity
        self.symmetric = symmetric
        self.alpha = alpha
        self.dataset = dataset
        self.dataset_kwargs = dataset_kwargs
        self.text_columns = text_columns
        self.tokenizer = tokenizer
        self.num_samples = num_samples
        self.max_length = max_length
        self.batch_size = batch_size
        self.seed = seed
        self.fold = fold
        self.fallback = fallback
        self.modules_to_not_convert = modules_to_not_convert
        self.min_features = min_features
        self.calibration = calibration
        self.post_init()

    def post_init(self) -> None:
        """Validates every field that is part of the checkpoint; `dataset` is judged where it is read."""
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(map(repr, ACTIVATIONS))}, got {self.activation!r}.")
        self._check_granularity()
        for pattern, alpha in self.alpha.items() if isinstance(self.alpha, dict) else [("*", self.alpha)]:
            if not isinstance(pattern, str) or not pattern:
                raise TypeError(f"alpha: {pattern!r} is no module name or 're:' pattern.")
            _check_pattern("alpha", pattern)
            if alpha == "auto":
                continue
            if isinstance(alpha, bool) or not isinstance(alpha, Real):
                raise TypeError(f"alpha must be a number between 0 and 1 or 'auto', got {alpha!r}.")
            if not 0 <= alpha <= 1:
                raise ValueError(
                    f"alpha must be between 0 (smooth the weights) and 1 (smooth the inputs), got {alpha}."
                )
        self.alpha = _as_json(self.alpha)
        for name in ("num_samples", "max_length", "batch_size", "min_features", "seed"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Integral):
                raise TypeError(f"{name} must be a whole number, got {value!r}.")
            if value < 1 and name != "seed":
                raise ValueError(f"{name} must be at least 1, got {value}.")
            setattr(self, name, int(value))
        for name in ("fold", "symmetric"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, got {getattr(self, name)!r}.")
        if self.fallback is not None:
            _check_fallback(self.fallback, self.activation)
        if not (self.dataset_kwargs is None or isinstance(self.dataset_kwargs, dict)):
            raise TypeError(f"dataset_kwargs must be a dict for datasets.load_dataset, got {self.dataset_kwargs!r}.")
        columns = self.text_columns
        if isinstance(columns, str) or not (columns is None or all(isinstance(name, str) for name in columns)):
            raise TypeError(f"text_columns must be a list of one or two column names, got {columns!r}.")
        names = self.modules_to_not_convert
        if isinstance(names, str) or not (
            names is None or (isinstance(names, list | tuple) and all(isinstance(name, str) and name for name in names))
        ):
            raise TypeError(f'modules_to_not_convert must be a list of names or "re:" patterns, got {names!r}.')
        for name in names or ():
            _check_pattern("modules_to_not_convert", name)
        if not (self.tokenizer is None or isinstance(self.tokenizer, str) or callable(self.tokenizer)):
            raise TypeError(
                "tokenizer must be a tokenizer or processor, its name or its folder, got "
                f"{type(self.tokenizer).__name__}."
            )
        if not (self.calibration is None or isinstance(self.calibration, dict)):
            raise TypeError(f"calibration is written by hf_smoothquant and must be a dict, got {self.calibration!r}.")

    def _check_granularity(self) -> None:
        if self.weight_granularity not in WEIGHT_GRANULARITIES:
            raise ValueError(f"weight_granularity must be 'row' or 'tensor', got {self.weight_granularity!r}.")
        accepted = ACTIVATION_GRANULARITIES[self.activation]
        if self.activation_granularity not in (None, *accepted):
            choice = " or ".join(map(repr, accepted))
            raise ValueError(
                f"activation={self.activation!r} takes activation_granularity {choice or None}, got "
                f"{self.activation_granularity!r}."
            )
        if self.activation == "none":
            given = [name for name in ("dataset", "fallback") if getattr(self, name) is not None]
            given += [
                name
                for name, default in (("alpha", DEFAULT_ALPHA), ("symmetric", True))
                if getattr(self, name) != default
            ]
            if given:
                raise ValueError(
                    f"activation='none' leaves inputs in float and calibrates nothing: leave out {', '.join(given)}."
                )

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], return_unused_kwargs: bool = False, **kwargs):
        """Reads the `quantization_config` of a checkpoint.

        Keys that this version doesn't know are skipped with a warning, so that a checkpoint with a note added by
        somebody loads.

        Raises:
            `ValueError`: the checkpoint has a newer `format_version`, or none that is a whole number.
        """
        config_dict = dict(config_dict)
        config_dict.pop("quant_method", None)
        is_checkpoint = "format_version" in config_dict
        format_version = config_dict.pop("format_version", FORMAT_VERSION)
        if isinstance(format_version, bool) or not isinstance(format_version, int) or format_version < 1:
            raise ValueError(f"format_version of the checkpoint must be a whole number from 1, got {format_version!r}.")
        if format_version > FORMAT_VERSION:
            raise ValueError(
                f"This checkpoint has SmoothQuant format version {format_version}, and this hf_smoothquant reads up to "
                f"{FORMAT_VERSION}. Upgrade it: pip install -U hf_smoothquant"
            )
        known = cls().__dict__.keys() - {"quant_method", "format_version", *_RUNTIME_ONLY}
        unknown = sorted(config_dict.keys() - known)
        if unknown and not is_checkpoint:
            raise TypeError(f"SmoothQuantConfig has no {', '.join(unknown)}. It takes: {', '.join(sorted(known))}.")
        if unknown:
            logger.warning(f"Skipping unknown keys of the checkpoint's quantization_config: {', '.join(unknown)}.")
        return super().from_dict(
            {key: value for key, value in config_dict.items() if key in known}, return_unused_kwargs, **kwargs
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: every field but what belongs to this process (the dataset's, the tokenizer)."""
        return {key: copy.deepcopy(value) for key, value in self.__dict__.items() if key not in _RUNTIME_ONLY}

    def without_runtime_objects(self, calibration: dict[str, Any] | None) -> "SmoothQuantConfig":
        """The config of the quantized model: without the data and tokenizer, a record of them in `calibration`."""
        config = copy.copy(self)
        for name in _RUNTIME_ONLY:
            setattr(config, name, None)
        config.calibration = calibration
        return config

    def __iter__(self):
        yield from self.to_dict().items()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SmoothQuantConfig) and self.to_dict() == other.to_dict()

    __hash__ = None  # mutable, as its base class is

    def __deepcopy__(self, memo: dict) -> "SmoothQuantConfig":
        # from_pretrained copies the model's config, this one in it: a DataLoader or a generator can't be copied.
        clone = copy.copy(self)
        memo[id(self)] = clone
        for name, value in self.__dict__.items():
            if name not in _RUNTIME_ONLY:
                setattr(clone, name, copy.deepcopy(value, memo))
        return clone


def _as_json(alpha: Any) -> Any:
    """`alpha` without numbers of other libraries (`np.float32`), which JSON can't hold."""
    if isinstance(alpha, dict):
        return {pattern: _as_json(value) for pattern, value in alpha.items()}
    return float(alpha) if isinstance(alpha, Real) else alpha


def _check_pattern(field: str, pattern: str) -> None:
    if pattern.startswith("re:"):
        try:
            re.compile(pattern.removeprefix("re:"))
        except re.error as error:
            raise ValueError(f"{field}: {pattern!r} is no regular expression: {error}.") from error


def _check_fallback(fallback: Any, activation: str) -> None:
    if not isinstance(fallback, dict):
        raise TypeError(f'fallback must be a dict like {{"min_sqnr_db": 20}}, got {fallback!r}.')
    unknown = sorted(map(str, fallback.keys() - {"min_sqnr_db", "max_layers", "to"}))
    if unknown:
        raise ValueError(f"fallback has no {', '.join(unknown)}. It takes: min_sqnr_db, max_layers, to.")
    if not fallback.keys() & {"min_sqnr_db", "max_layers"}:
        raise ValueError('fallback needs "min_sqnr_db", "max_layers" or both.')
    decibels = fallback.get("min_sqnr_db", 20)
    if isinstance(decibels, bool) or not isinstance(decibels, Real) or not 0 < decibels < 100:
        raise ValueError(f"fallback: min_sqnr_db must be a number of decibels between 0 and 100, got {decibels!r}.")
    layers = fallback.get("max_layers", 1)
    if isinstance(layers, bool) or not isinstance(layers, int) or layers < 1:
        raise ValueError(f"fallback: max_layers must be a whole number from 1, got {layers!r}.")
    below = [kind for kind in ("dynamic", "float") if kind != activation]
    if fallback.get("to") not in (None, *below):
        raise ValueError(f"fallback: to must be {' or '.join(map(repr, below))} here, got {fallback['to']!r}.")
