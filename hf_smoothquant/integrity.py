"""Checks of a safetensors checkpoint before anything is loaded from it (the format is in docs/format.md)."""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from safetensors import SafetensorError, safe_open

from hf_smoothquant.checkpoint import CHECKSUMS, LISTS, PARTS, PREFIX, REPAIR
from hf_smoothquant.config import SmoothQuantConfig


def check_checkpoint(files: Sequence[str], config: SmoothQuantConfig) -> dict[str, int]:
    """Checks, from the files' headers, that every tensor of the checkpoint is there and every int8 weight whole.

    Args:
        files (`Sequence[str]`): paths of all shards.
        config (`SmoothQuantConfig`): the checkpoint's own.

    Returns:
        `dict[str, int]`: the checksums of the int8 weights by name, to be compared when they are loaded.

    Raises:
        `ValueError`: a file is no safetensors file or is cut short, or a tensor is missing or has a wrong shape or
            dtype; the message names the tensor.
    """
    tensors: dict[str, tuple[str, list[int], str]] = {}
    listed: dict[str, list[str]] = {}
    checksums: dict[str, int] = {}
    saves: set[str | None] = set()
    for file in files:
        if not str(file).endswith(".safetensors"):
            raise ValueError(
                f"{Path(file).name}: a SmoothQuant checkpoint is stored as safetensors, not pickle. {REPAIR}"
            )
        try:
            with safe_open(file, framework="pt") as opened:
                metadata = opened.metadata() or {}
                listed.update({key: json.loads(metadata.get(key, "[]")) for key in LISTS})
                checksums.update(json.loads(metadata.get(CHECKSUMS, "{}")))
                saves.add(metadata.get(CHECKSUMS))
                for key in opened.keys():  # noqa: SIM118 (not a dict)
                    part = opened.get_slice(key)
                    tensors[key] = (part.get_dtype(), part.get_shape(), Path(file).name)
        except SafetensorError as error:
            _refuse_damaged(Path(file), error)
    if len(saves) > 1:
        raise ValueError(f"The {len(files)} files of the checkpoint were not saved together. {REPAIR}")
    quantized: dict[str, dict[str, tuple]] = defaultdict(dict)
    for key in tensors:
        module, _, leaf = key.rpartition(".")
        if leaf.startswith(PREFIX):
            quantized[module][leaf.removeprefix(PREFIX)] = tensors[key]
    if not quantized:
        raise ValueError(
            'config.json says quant_method "smoothquant", but the checkpoint has no int8 weight. Save the quantized '
            "model again with save_pretrained, or remove quantization_config from config.json to load float weights."
        )
    for module, parts in quantized.items():
        _check_parts(module, parts, config)
    if not any(listed.values()):
        raise ValueError(f"The checkpoint has lost the metadata that says which tensors belong to it. {REPAIR}")
    missing = [[name for name in listed[key] if name not in tensors] for key in LISTS]
    if all(missing):
        raise ValueError(f"The checkpoint lacks the tensor {missing[0][0]!r}, which its own list has. {REPAIR}")
    return checksums


def _check_parts(module: str, parts: dict[str, tuple[str, list[int], str]], config: SmoothQuantConfig) -> None:
    # With a fallback some groups are dynamic: what says that no scale was lost is then the list of tensors.
    all_static = config.activation == "static" and config.fallback is None
    required = ["qdata", "scale"] + (["act_quant_scale"] if all_static else [])
    if "act_quant_scale" in parts and not config.symmetric:
        required.append("act_quant_zero_point")
    for part in required:
        if part not in parts:
            raise ValueError(f"The checkpoint lacks the tensor '{module}.{PREFIX}{part}'. {REPAIR}")
    dtype, shape, file = parts["qdata"]
    if dtype != "I8" or len(shape) != 2:
        raise ValueError(f"{file}: '{module}.{PREFIX}qdata' is {dtype} {shape}, expected I8 [out, in]. {REPAIR}")
    rows, columns = shape
    expected = {"qdata": [rows, columns], "scale": [rows, 1], "act_pre_scale": [columns]}
    for part, (dtype, shape, file) in parts.items():
        name = f"'{module}.{PREFIX}{part}'"
        if part not in PARTS:
            raise ValueError(f"{file}: {name} is not part of the SmoothQuant format. {REPAIR}")
        wanted = expected.get(part, [1] * len(shape))
        kind = "I8" if part in ("qdata", "act_quant_zero_point") else "F32"
        if shape != wanted or dtype != kind:
            raise ValueError(f"{file}: {name} is {dtype} {shape}, expected {kind} {wanted}. {REPAIR}")
    if config.activation != "static" and "act_quant_scale" in parts:
        raise ValueError(
            f"'{module}.{PREFIX}act_quant_scale' is the scale of a static model, but config.json says activation "
            f"{config.activation!r}. {REPAIR}"
        )
    if config.symmetric and "act_quant_zero_point" in parts:
        raise ValueError(
            f"'{module}.{PREFIX}act_quant_zero_point' belongs to an asymmetric model, but config.json says symmetric. "
            f"{REPAIR}"
        )


def _refuse_damaged(file: Path, error: SafetensorError) -> NoReturn:
    """Names the first tensor that a truncated file cuts, where its header can still be read."""
    content = file.read_bytes()
    cut = ""
    try:
        start = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:start])
        ends = {name: start + entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"}
        missing = sorted((end, name) for name, end in ends.items() if end > len(content))
        cut = f" It ends inside or before the tensor {missing[0][1]!r}." if missing else ""
    except (ValueError, KeyError, TypeError, AttributeError):
        pass  # the header itself is damaged
    raise ValueError(f"{file.name} can't be read as safetensors ({error}).{cut} {REPAIR}") from error
