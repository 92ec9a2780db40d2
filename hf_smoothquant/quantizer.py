"""The plugin: transformers' quantizer hooks. Their order and meaning are those of transformers 5.24."""

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torchao.quantization import Int8Tensor
from transformers.quantizers import HfQuantizer
from transformers.quantizers.auto import (
    AUTO_QUANTIZATION_CONFIG_MAPPING,
    AUTO_QUANTIZER_MAPPING,
    AutoHfQuantizer,
)

from hf_smoothquant.config import QUANT_METHOD, SmoothQuantConfig
from hf_smoothquant.footprint import MemoryFootprint
from hf_smoothquant.report import QuantizationReport
from hf_smoothquant.saving import SavePretrained
from hf_smoothquant.versions import check_versions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class SmoothQuantHfQuantizer(HfQuantizer):
    """Calibrates and converts a float model after its weights are loaded, or rebuilds an int8 one from a checkpoint."""

    requires_calibration = False  # True would mean: only ever load what is quantized already
    quantization_config: SmoothQuantConfig

    def validate_environment(self, *args, device_map: Any = None, **kwargs) -> None:
        """Refuses what can't work before anything is loaded: library versions, devices."""
        check_versions()
        places = set(device_map.values()) if isinstance(device_map, dict) else {device_map} - {None}
        if "disk" in places or len(places) > 1:
            raise ValueError(
                f"SmoothQuant needs the whole model on one device, and device_map has {sorted(map(str, places))}. "
                'Leave device_map out, or use device_map="cpu".'
            )
        for place in places:
            device = None if place in ("auto", "balanced", "balanced_low_0", "sequential") else torch.device(place)
            if device is not None and device.type == "cuda" and not torch.cuda.is_available():
                raise ValueError(
                    f"device_map asks for {device}, and this machine has no CUDA device. Leave it out: CPU."
                )

    def _process_model_before_weight_loading(
        self,
        model: "PreTrainedModel",
        dtype: torch.dtype | None = None,
        checkpoint_files: list[str] | None = None,
        **kwargs,
    ) -> None:
        self.dtype = dtype or torch.get_default_dtype()
        if self.dtype not in DTYPES:
            names = ", ".join(map(str, DTYPES))
            raise ValueError(
                f"SmoothQuant models are of dtype {names}, not {self.dtype}: pass dtype= to from_pretrained."
            )
        if self.pre_quantized:
            from hf_smoothquant.integrity import check_checkpoint

            self.load_errors: list[str] = []
            self.checksums = check_checkpoint(checkpoint_files or [], self.quantization_config)
            self.report = QuantizationReport.load(Path(checkpoint_files[0]).parent)

    def _process_model_after_weight_loading(self, model: "PreTrainedModel", **kwargs) -> "PreTrainedModel":
        if not self.pre_quantized:
            from hf_smoothquant.conversion import quantize_model

            devices = {str(parameter.device) for parameter in model.parameters()}
            if len(devices) > 1:
                raise ValueError(f"SmoothQuant needs the whole model on one device, and it is on {sorted(devices)}.")
            self.quantization_config, self.report = quantize_model(model, self.quantization_config)
            self.report.drop_channels()
            model.config.quantization_config = self.quantization_config
        else:
            self._finish_loading(model)
        model.get_memory_footprint = MemoryFootprint(model)
        model.save_pretrained = SavePretrained(model)
        return model

    def _finish_loading(self, model: "PreTrainedModel") -> None:
        from hf_smoothquant.checkpoint import LoadInt8Weight

        if self.load_errors:
            raise ValueError(self.load_errors[0])
        if not any(isinstance(parameter, Int8Tensor) for parameter in model.parameters()):
            raise ValueError(
                f"None of the checkpoint's int8 weights belongs to {type(model).__name__}: it was saved from another "
                "architecture. Load it with the class named in its config.json."
            )
        # transformers undoes the conversions of loading when it saves again; ours is undone before, by flattening.
        model._weight_conversions = [
            conversion
            for conversion in model._weight_conversions
            if not any(isinstance(operation, LoadInt8Weight) for operation in getattr(conversion, "operations", ()))
        ]

    def get_state_dict_and_metadata(self, model: "PreTrainedModel"):
        """The state dict in torchao's flattened layout: plain tensors that safetensors can hold."""
        from hf_smoothquant.checkpoint import flatten

        return flatten(model)

    @property
    def serialized_names(self) -> dict[str, list[str]]:
        """The parts that a stored int8 `weight` consists of."""
        if not self.pre_quantized:
            return {}
        from hf_smoothquant.checkpoint import PARTS, PREFIX

        return {"weight": [PREFIX + part for part in PARTS]}

    def get_load_operations(self) -> dict:
        from hf_smoothquant.checkpoint import LoadInt8Weight

        return {"deserialize": LoadInt8Weight}

    def _dequantize(self, model: "PreTrainedModel", dtype: torch.dtype | None = None) -> "PreTrainedModel":
        from hf_smoothquant.conversion import dequantize_model

        dequantize_model(model)
        del model.get_memory_footprint
        dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype  # config.dtype is a string once it was saved
        if dtype is not None and dtype != model.dtype:
            torch.nn.Module.to(model, dtype)
        return model

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        # Without these two, Trainer refuses the model for predict and evaluate, too. Its train() then ends at the first
        # gradient that would pass through int8, with an error that says what to do (linear.ForwardOnly).
        return True

    is_qat_trainable = is_trainable

    @property
    def is_compileable(self) -> bool:
        return True


def register() -> None:
    """Makes `SmoothQuantConfig` known to transformers; calling it again, or after a reload, changes nothing else.

    The registry's decorators refuse a second registration, so the mappings behind them are set.
    """
    AUTO_QUANTIZATION_CONFIG_MAPPING[QUANT_METHOD] = SmoothQuantConfig
    AUTO_QUANTIZER_MAPPING[QUANT_METHOD] = SmoothQuantHfQuantizer
    _refuse_requantization()


def _refuse_requantization() -> None:
    """Makes `from_pretrained(quantized, quantization_config=SmoothQuantConfig())` an error.

    transformers 5.24 only warns and uses the checkpoint's own settings, and has no hook that sees both configs.
    """
    merge = AutoHfQuantizer.merge_quantization_configs
    merge = getattr(merge, "__wrapped__", merge)

    @functools.wraps(merge)
    def merge_quantization_configs(quantization_config, quantization_config_from_args):
        if type(quantization_config_from_args).__name__ == SmoothQuantConfig.__name__:
            saved = quantization_config if isinstance(quantization_config, dict) else quantization_config.to_dict()
            raise ValueError(
                f"The model is quantized already (quant_method {saved.get('quant_method')!r}). Load it without "
                "quantization_config, or quantize the float model it was made from."
            )
        return merge(quantization_config, quantization_config_from_args)

    AutoHfQuantizer.merge_quantization_configs = staticmethod(merge_quantization_configs)
