"""Samples kept out of calibration, to judge the quantized model on."""

from collections.abc import Mapping

import torch

EVERY = 8
MAX_SAMPLES = 8


class HoldOut:
    """Takes every eighth sample out of the batches that pass through it: no statistic has seen them."""

    def __init__(self):
        self._samples: list[Mapping[str, torch.Tensor]] = []
        self._count = 0

    def split(self, batch: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor] | None:
        """Keeps what falls to it of `batch` and returns the rest; `None` when nothing is left."""
        size = len(next(value for value in batch.values() if isinstance(value, torch.Tensor)))
        held = torch.arange(self._count, self._count + size) % EVERY == EVERY - 1
        self._count += size
        if not held.any():
            return batch
        self._samples += [_rows(batch, size, index) for index in held.nonzero()]
        return None if held.all() else _rows(batch, size, (~held).nonzero().flatten())

    @property
    def samples(self) -> list[Mapping[str, torch.Tensor]]:
        """Up to `MAX_SAMPLES` batches of one sample, spread evenly over all that were held out.

        Raises:
            `ValueError`: nothing was held out, since there were fewer than `EVERY` samples.
        """
        if not self._samples:
            raise ValueError(
                f"fallback judges the model on every {EVERY}th calibration sample, and there were only {self._count}. "
                "Give SmoothQuantConfig(dataset=...) more samples, or leave fallback out."
            )
        return self._samples[:: -(-len(self._samples) // MAX_SAMPLES)]


def _rows(batch: Mapping[str, torch.Tensor], size: int, index: torch.Tensor) -> dict[str, torch.Tensor]:
    def take(value):
        has_samples = isinstance(value, torch.Tensor) and value.ndim > 0 and len(value) == size
        return value[index.to(value.device)] if has_samples else value

    return {key: take(value) for key, value in batch.items()}
