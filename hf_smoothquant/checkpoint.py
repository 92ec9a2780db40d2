"""How int8 weights are stored in safetensors files and joined again (the format is in docs/format.md)."""

import json
import zlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
from torchao.quantization import Int8Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import ConversionOps, revert_weight_conversion

from hf_smoothquant.conv1d import to_linear
from hf_smoothquant.int8 import activation_kwargs, int8_tensor
from hf_smoothquant.linear import Int8Linear
from hf_smoothquant.tensor import as_torchao

PREFIX = "_weight_"
PARTS = ("qdata", "scale", "act_pre_scale", "act_quant_scale", "act_quant_zero_point")
LISTS = ("stored_tensors", "stored_tensors_unconverted")
CHECKSUMS = "int8_checksums"
REPAIR = "The file is damaged or was edited: download or save the checkpoint again."


def flatten(model: PreTrainedModel) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors of `model` as safetensors can hold them, and the metadata that goes with them.

    transformers stores some models under the names and in the parts of their original checkpoints
    (`save_original_format`, which the user can turn off): hence two lists of what is stored, one of them the true one.
    """
    unstored = {*model.all_tied_weights_keys, *(model._keys_to_ignore_on_save or [])}
    state = {name: tensor for name, tensor in model.state_dict().items() if name not in unstored}
    tensors, metadata = flatten_tensor_state_dict({name: as_torchao(tensor) for name, tensor in state.items()})
    original = revert_weight_conversion(model, {name: tensor.to("meta") for name, tensor in tensors.items()})
    lists = {key: json.dumps(sorted(names)) for key, names in zip(LISTS, (original, tensors), strict=True)}
    checksums = {
        name: checksum({part: getattr(tensor, part) for part in PARTS})
        for name, tensor in state.items()
        if isinstance(tensor, Int8Tensor)
    }
    return tensors, {**metadata, **lists, CHECKSUMS: json.dumps(checksums)}


def checksum(parts: Mapping[str, torch.Tensor | None]) -> int:
    """CRC-32 over the bytes of the parts of one int8 weight, in the order of `PARTS`."""
    value = 0
    for part in PARTS:
        if parts.get(part) is not None:
            value = zlib.crc32(parts[part].detach().cpu().contiguous().numpy(), value)
    return value


class LoadInt8Weight(ConversionOps):
    """Joins the stored parts of one weight to an `Int8Tensor` while transformers loads a checkpoint."""

    def __init__(self, hf_quantizer):
        self.hf_quantizer = hf_quantizer  # by this name transformers knows to leave the tensors in their own dtype

    def __deepcopy__(self, memo: dict) -> "LoadInt8Weight":
        return self  # transformers copies its converters for each tensor, and would copy the whole quantizer with them

    def convert(
        self, input_dict: dict[str, Any], model: nn.Module | None = None, full_layer_name: str = "", **kwargs
    ) -> dict[str, torch.Tensor]:
        """Returns `{full_layer_name: Int8Tensor}`; the Linear it belongs to becomes an `Int8Linear`.

        A shape that isn't the Linear's is refused by transformers, as for float weights.
        """
        parts = {key.removeprefix(PREFIX): value[0] for key, value in input_dict.items()}
        expected = self._stored_checksums(model, full_layer_name)
        if expected and checksum(parts) not in expected:
            # An exception here would end up in a table of transformers' log: the quantizer raises it after loading.
            self.hf_quantizer.load_errors.append(
                f"The int8 weight {full_layer_name!r} ({', '.join(sorted(input_dict))}) isn't what was saved. {REPAIR}"
            )
        module = model.get_submodule(full_layer_name.rpartition(".")[0])
        to_linear([module])  # in GPT-2 transformers builds Conv1D
        linear = Int8Linear.adopt(module)
        # Flags transformers' own loader sets too: without them it would initialize the weight again, at random.
        for owner in (linear, *linear.parameters(recurse=False)):
            owner._is_hf_initialized = True
        kwargs = activation_kwargs(self.hf_quantizer.quantization_config, static="act_quant_scale" in parts)
        return {full_layer_name: int8_tensor(**parts, dtype=self.hf_quantizer.dtype, act_quant_kwargs=kwargs)}

    def _stored_checksums(self, model: nn.Module, name: str) -> set[int]:
        """The checksum stored for `name`, which had or hadn't the prefix of the base model when it was saved."""
        prefix = f"{model.base_model_prefix}."
        names = (name, prefix + name, name.removeprefix(prefix))
        return {self.hf_quantizer.checksums[known] for known in names if known in self.hf_quantizer.checksums}
