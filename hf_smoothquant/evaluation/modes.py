"""The variants of a model that are compared: float ones, and int8 ones by activation, strength, data and fallback."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

FLOATS = {"fp32": torch.float32, "bf16": torch.bfloat16}
KINDS = (*FLOATS, "static", "dynamic", "saved")


@dataclass(frozen=True)
class Mode:
    """One variant.

    Attributes:
        kind (`str`): `"fp32"`, `"bf16"`, `"static"`, `"dynamic"`, or `"saved"`: an int8 checkpoint as it is.
        alpha (`float` or `str`): smoothing strength; of int8 kinds.
        calibration (`str`): `"builtin"`, a local file or a hub id; of int8 kinds.
        min_sqnr_db (`float`, *optional*): budget of `SmoothQuantConfig(fallback=...)`; of int8 kinds.
        autocast (`bool`): bfloat16 between the int8 Linears.
        compiled (`bool`): through `hf_smoothquant.compile` instead of eager; of int8 kinds, float is the reference.
    """

    kind: str
    alpha: float | str | None = None
    calibration: str | None = None
    min_sqnr_db: float | None = None
    autocast: bool = False
    compiled: bool = False

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"There is no mode {self.kind!r}. Modes: {', '.join(KINDS)}.")

    @property
    def quantizes(self) -> bool:
        """Whether the mode makes an int8 model of a float one."""
        return self.kind in ("static", "dynamic")

    def to_dict(self) -> dict[str, Any]:
        """The fields, JSON-like."""
        return asdict(self)


def all_modes(
    kinds: Sequence[str],
    alphas: Sequence[float | str],
    calibrations: Sequence[str] = ("builtin",),
    budgets: Sequence[float | None] = (None,),
    autocast: bool = False,
    compiled: bool = False,
) -> list[Mode]:
    """Every combination, float kinds once each: those first, as the baseline of the differences is the first mode."""
    modes = []
    for kind in sorted(dict.fromkeys(kinds), key=lambda kind: kind not in FLOATS):
        if kind in ("static", "dynamic"):
            for calibration, alpha, budget in itertools.product(calibrations, alphas, budgets):
                modes.append(Mode(kind, alpha, calibration, budget, autocast, compiled))
        else:
            saved = kind == "saved"
            modes.append(Mode(kind, autocast=autocast and saved, compiled=compiled and saved))
    return modes


def build(mode: Mode, model_class: type, name: str, calibration: Callable[[str], Any]) -> tuple[Any, Any]:
    """Loads the model that `mode` describes.

    Args:
        mode (`Mode`): the variant.
        model_class (`type`): an `AutoModelFor...`.
        name (`str`): folder or hub id.
        calibration (`Callable`): from the mode's `calibration` to what `SmoothQuantConfig(dataset=...)` takes.

    Returns:
        The model, and the model to call: the same one or its compiled form.

    Raises:
        `ValueError`: the model is quantized already and the mode isn't `"saved"`, or the other way round; or the
            checkpoint lacks weights of the task's head.
    """
    import hf_smoothquant

    is_int8 = is_quantized(name)
    if is_int8 != (mode.kind == "saved"):
        fact = "is quantized already: only the mode 'saved' works" if is_int8 else "is a float model: it isn't 'saved'"
        raise ValueError(f"{name} {fact}. Give --modes accordingly.")
    kwargs = {"dtype": FLOATS.get(mode.kind, torch.float32)}
    if mode.quantizes:
        kwargs["quantization_config"] = hf_smoothquant.SmoothQuantConfig(
            activation=mode.kind,
            alpha=mode.alpha,
            dataset=calibration(mode.calibration),
            fallback=None if mode.min_sqnr_db is None else {"min_sqnr_db": mode.min_sqnr_db},
        )
    model, info = model_class.from_pretrained(name, output_loading_info=True, **kwargs)
    if info["missing_keys"]:
        raise ValueError(
            f"{name} wasn't trained for this task: {', '.join(sorted(info['missing_keys']))} of {type(model).__name__} "
            "aren't in the checkpoint and would be random."
        )
    model.eval()
    if not mode.compiled:
        if mode.autocast:
            model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)
        return model, model
    return model, hf_smoothquant.compile(model, dynamic=True, autocast=torch.bfloat16 if mode.autocast else None)


def is_quantized(name: str) -> bool:
    """Whether a folder or hub id holds a quantized checkpoint."""
    from transformers import AutoConfig

    return getattr(AutoConfig.from_pretrained(name), "quantization_config", None) is not None
