"""The calibration loop: batches through the float model, statistics out."""

import inspect
from collections.abc import Mapping

import torch
from torch import nn
from transformers import PreTrainedModel

from hf_smoothquant.calibration.data import CalibrationData
from hf_smoothquant.calibration.distributed import rank_and_world_size, share_statistics
from hf_smoothquant.calibration.holdout import HoldOut
from hf_smoothquant.calibration.observer import Observer, observe
from hf_smoothquant.progress import progress


def calibrate(
    model: PreTrainedModel, linears: Mapping[str, nn.Linear], data: CalibrationData, hold_out: HoldOut | None = None
) -> Observer:
    """Runs `data` through `model`, but for what `hold_out` takes of it, and returns what `linears` saw of it.

    The model is left as it was found, also when a batch raises: mode, hooks, config and gradients untouched.

    Under `torchrun` or `accelerate launch`, once the process group is initialized, each process runs its share of the
    batches, and all return the same statistics.

    Raises:
        `ValueError`: a batch gives non-finite values, or there is no batch at all.
    """
    modes = {module: module.training for module in model.modules()}
    model.eval()
    rank, world_size = rank_and_world_size()
    failure = None
    try:
        with torch.no_grad(), observe(linears, seed=rank) as observer:
            try:
                _run(model, data, observer, hold_out, rank, world_size)
            except Exception as error:
                if world_size == 1:
                    raise
                failure = error
    finally:
        for module, training in modes.items():
            module.training = training
    if world_size > 1:
        share_statistics(observer, failure)
    if not data.num_samples:
        raise ValueError("The calibration dataset is empty: give SmoothQuantConfig(dataset=...) at least one sample.")
    if data.num_tokens == 0:
        raise ValueError("The calibration batches hold nothing but padding: check the attention masks of the dataset.")
    return observer


def _run(
    model: PreTrainedModel,
    data: CalibrationData,
    observer: Observer,
    hold_out: HoldOut | None,
    rank: int,
    world_size: int,
) -> None:
    """Runs each batch of `data` that falls to this process."""
    parameters = inspect.signature(model.forward).parameters
    extra = {"use_cache": False} if "use_cache" in parameters else {}
    batches = progress(data, "Calibrating", "batch", data.num_batches, hidden=rank > 0)
    for index, batch in enumerate(batches):
        inputs = {
            name: value.to(model.device) if isinstance(value, torch.Tensor) else value
            for name, value in batch.items()
            if name in parameters
        }
        if model.config.is_encoder_decoder and "decoder_input_ids" in parameters and "labels" not in inputs:
            _add_decoder_inputs(inputs, model)
        inputs |= extra
        if hold_out is not None:  # in every process: all judge the model on the same samples
            inputs = hold_out.split(inputs)
        if inputs is None or index % world_size != rank:
            continue
        observer.start_batch(inputs)
        model(**inputs)


def _add_decoder_inputs(inputs: dict[str, torch.Tensor], model: PreTrainedModel) -> None:
    """Gives the decoder the text that the encoder reads; the start of a text where there is none (audio)."""
    if "decoder_input_ids" in inputs:
        return
    if "input_ids" in inputs:
        inputs["decoder_input_ids"] = inputs["input_ids"]
        if "attention_mask" in inputs:
            inputs.setdefault("decoder_attention_mask", inputs["attention_mask"])
    else:
        batch = len(next(iter(inputs.values())))
        start = model.config.decoder_start_token_id
        inputs["decoder_input_ids"] = torch.full((batch, 1), start, device=model.device)
