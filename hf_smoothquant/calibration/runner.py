"""The calibration loop: batches through the float model, statistics out."""

import inspect
from collections.abc import Mapping

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.utils import logging

from hf_smoothquant.calibration.data import CalibrationData
from hf_smoothquant.calibration.observer import Observer, observe

logger = logging.get_logger(__name__)


def calibrate(model: PreTrainedModel, linears: Mapping[str, nn.Linear], data: CalibrationData) -> Observer:
    """Runs `data` through `model` and returns what `linears` saw of it.

    The model is left as it was found, also when a batch raises: mode, hooks, config and gradients untouched.

    Raises:
        `ValueError`: a batch gives non-finite values, or there is no batch at all.
    """
    parameters = inspect.signature(model.forward).parameters
    extra = {"use_cache": False} if "use_cache" in parameters else {}
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad(), observe(linears) as observer:
            progress = logging.tqdm(data, total=data.num_batches, desc="Calibrating", unit="batch", leave=False)
            for batch in progress:
                inputs = {name: value for name, value in batch.items() if name in parameters}
                inputs = {
                    name: value.to(model.device) if isinstance(value, torch.Tensor) else value
                    for name, value in inputs.items()
                }
                if model.config.is_encoder_decoder and "labels" not in inputs:
                    inputs.setdefault("decoder_input_ids", inputs.get("input_ids"))
                    if "attention_mask" in inputs:
                        inputs.setdefault("decoder_attention_mask", inputs["attention_mask"])
                observer.start_batch(inputs)
                model(**inputs, **extra)
    finally:
        for module, training in modes.items():
            module.training = training
    if not data.num_samples:
        raise ValueError("The calibration dataset is empty: give SmoothQuantConfig(dataset=...) at least one sample.")
    return observer
