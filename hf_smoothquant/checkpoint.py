"""Reading and checking the int8 tensors of a safetensors checkpoint (the format is in docs/format.md)."""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from torchao.quantization import Int8Tensor, MappingType, PerRow, PerTensor
from torchao.quantization.quantize_.workflows import QuantizeTensorToInt8Kwargs
from transformers.core_model_loading import ConversionOps

from hf_smoothquant.config import SmoothQuantConfig
from hf_smoothquant.linear import Int8Linear

PREFIX = "_weight_"
PARTS = ("qdata", "scale", "act_pre_scale", "act_quant_scale")
SCALES = tuple(PREFIX + part for part in PARTS if part != "qdata")
REPAIR = "The file is damaged or was edited: download or save the checkpoint again."


def check_checkpoint(files: Sequence[str], config: SmoothQuantConfig) -> None:
    """Checks, from the headers and the scales, that every int8 weight of the checkpoint is whole.

    Args:
        files (`Sequence[str]`): paths of all shards.
        config (`SmoothQuantConfig`): the checkpoint's own.

    Raises:
        `ValueError`: a file is no safetensors file or is cut short, a tensor is missing, has a wrong shape or dtype, or
            holds values that are no scales; the message names the tensor.
    """
    tensors: dict[str, tuple[str, list[int], str]] = {}
    listed: set[str] = set()
    no_scales: list[str] = []
    for file in files:
        if not str(file).endswith(".safetensors"):
            raise ValueError(
                f"{Path(file).name}: a SmoothQuant checkpoint is stored as safetensors, not pickle. {REPAIR}"
            )
        try:
            with safe_open(file, framework="pt") as opened:
                listed.update(_listed_tensors(opened.metadata() or {}))
                for key in opened.keys():  # noqa: SIM118 (not a dict)
                    part = opened.get_slice(key)
                    tensors[key] = (part.get_dtype(), part.get_shape(), Path(file).name)
                    if key.rpartition(".")[2] in SCALES and not _are_scales(opened.get_tensor(key)):
                        no_scales.append(key)
        except SafetensorError as error:
            _refuse_damaged(Path(file), error)
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
    for name in sorted(listed - tensors.keys()):
        raise ValueError(f"The checkpoint lacks the tensor {name!r}, which its own list has. {REPAIR}")
    for name in no_scales:
        raise ValueError(f"{name!r} has values that are no scales (zero, negative or not finite). {REPAIR}")


def _listed_tensors(metadata: dict[str, str]) -> Iterator[str]:
    """The names of all stored tensors, as the metadata written by torchao lists them."""
    for name in json.loads(metadata.get("tensor_names", "[]")):
        module, _, leaf = name.rpartition(".")
        parts = json.loads(metadata[name]).get("_tensor_data_names") if name in metadata else None
        yield from (f"{module}._{leaf}_{part}" for part in parts) if parts else (name,)


def _are_scales(tensor: torch.Tensor) -> bool:
    return bool((torch.isfinite(tensor) & (tensor > 0)).all())


def _check_parts(module: str, parts: dict[str, tuple[str, list[int], str]], config: SmoothQuantConfig) -> None:
    required = ["qdata", "scale"] + (["act_quant_scale"] if config.activation == "static" else [])
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
        if shape != wanted or (part != "qdata" and dtype != "F32"):
            kind = "I8" if part == "qdata" else "F32"
            raise ValueError(f"{file}: {name} is {dtype} {shape}, expected {kind} {wanted}. {REPAIR}")
    if config.activation != "static" and "act_quant_scale" in parts:
        raise ValueError(
            f"'{module}.{PREFIX}act_quant_scale' is the scale of a static model, but config.json says activation "
            f"{config.activation!r}. {REPAIR}"
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


class LoadInt8Weight(ConversionOps):
    """Joins the stored parts of one weight to an `Int8Tensor` while transformers loads a checkpoint."""

    def __init__(self, hf_quantizer):
        self.hf_quantizer = hf_quantizer  # by this name transformers knows to leave the tensors in their own dtype

    def convert(
        self, input_dict: dict[str, Any], model: nn.Module | None = None, full_layer_name: str = "", **kwargs
    ) -> dict[str, torch.Tensor]:
        """Returns `{full_layer_name: Int8Tensor}`; the Linear it belongs to becomes an `Int8Linear`.

        A shape that isn't the Linear's is refused by transformers, as for float weights.
        """
        name = full_layer_name.rpartition(".")[0]
        parts = {key.removeprefix(PREFIX): value[0] for key, value in input_dict.items()}
        linear, qdata = model.get_submodule(name), parts["qdata"]
        static = "act_quant_scale" in parts
        weight = Int8Tensor(
            **parts,
            block_size=[1, qdata.shape[1]],
            dtype=self.hf_quantizer.dtype,
            act_quant_kwargs=QuantizeTensorToInt8Kwargs(PerTensor() if static else PerRow(), MappingType.SYMMETRIC),
        )
        Int8Linear.adopt(linear)
        # Flags transformers' own loader sets too: without them it would initialize the weight again, at random.
        for owner in (linear, *linear.parameters(recurse=False)):
            owner._is_hf_initialized = True
        return {full_layer_name: weight}
