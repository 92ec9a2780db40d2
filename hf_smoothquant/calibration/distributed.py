"""Several processes, one calibration: each takes its share of the batches, all end with the same statistics."""

import torch
import torch.distributed as dist

from hf_smoothquant.calibration.observer import LinearStatistics, Observer, RowSample


def rank_and_world_size() -> tuple[int, int]:
    """This process's rank and the number of processes: (0, 1) outside of `torchrun` or `accelerate launch`."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def share_statistics(observer: Observer, failure: Exception | None) -> None:
    """Merges the statistics of all processes into each one's `observer`. Every process has to call it, failed or not.

    Raises:
        `failure` in the process it belongs to, and `ValueError` with its message in the others, which would otherwise
        wait for ever.
    """
    gathered: list = [None] * dist.get_world_size()
    message = None if failure is None else str(failure)
    dist.all_gather_object(gathered, (message, observer.statistics, observer.first_batch))
    if failure is not None:
        raise failure
    for rank, (message, *_) in enumerate(gathered):
        if message is not None:
            raise ValueError(f"Calibration failed in process {rank}: {message}")
    observer.statistics = merge_statistics([statistics for _, statistics, _ in gathered])
    # All try folds on the same batch; a process has none of its own where there are fewer batches than processes.
    observer.first_batch = next((batch for *_, batch in gathered if batch), {})


def merge_statistics(per_process: list[dict[str, LinearStatistics]]) -> dict[str, LinearStatistics]:
    """One set of statistics from those of several processes: the same as if one process had seen all batches.

    Minima and maxima are exact. Linears share a group when they read the same tensors in every process.
    """
    merged = {}
    for name in dict.fromkeys(name for statistics in per_process for name in statistics):
        parts = [statistics.get(name) for statistics in per_process]
        seen = [part for part in parts if part is not None]
        merged[name] = LinearStatistics(
            minimum=torch.stack([part.minimum for part in seen]).amin(0),
            maximum=torch.stack([part.maximum for part in seen]).amax(0),
            ndim=seen[0].ndim,
            sample=RowSample.merge([part.sample for part in seen]),
            inputs=hash(tuple(part and part.inputs for part in parts)),
        )
    return merged
