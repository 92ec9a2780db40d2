"""One workload, all variants: exported once, run in turns, compared."""

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers.utils import logging

from hf_smoothquant.benchmark.fidelity import Fidelity, compare
from hf_smoothquant.benchmark.process import WorkerError, WorkerProcess
from hf_smoothquant.benchmark.rounds import alternate
from hf_smoothquant.benchmark.statistics import Latency, Ratio, speedup
from hf_smoothquant.benchmark.variants import Variant, interpreter
from hf_smoothquant.benchmark.workers.protocol import load_ids
from hf_smoothquant.benchmark.workloads import Workload, load_model, make_requests

logger = logging.get_logger(__name__)


@dataclass(frozen=True)
class Settings:
    """How a benchmark is run.

    Attributes:
        folder (`Path`): for exports, converted models and logs; what is there is used again.
        environments (`Path`): of the peers' venvs.
        threads (`int`): of each worker.
        cores (`tuple[int, ...]`): to pin the workers to.
        preload (`tuple[str, ...]`): libraries the workers load first.
        rounds (`int`), seconds_per_turn (`float`), warmup (`int`): see `alternate`.
    """

    folder: Path
    environments: Path
    threads: int = 1
    cores: tuple[int, ...] = ()
    preload: tuple[str, ...] = ()
    rounds: int = 10
    seconds_per_turn: float = 1.0
    warmup: int = 1


@dataclass
class Result:
    """What came of one variant.

    Attributes:
        name (`str`): of the variant.
        error (`str`, *optional*): why there are no figures.
        latency (`Latency`), speedup (`Ratio`, over the first variant), fidelity (`Fidelity`, to float32).
        disk_bytes (`int`): of what the engine loads.
        rss_bytes, peak_rss_bytes (`int`): of the worker after the run, and at its peak: loading and compiling.
        load_seconds (`float`): until the first answer: loading, compiling, running once.
        facts (`dict`): what the worker says about itself.
    """

    name: str
    error: str | None = None
    latency: Latency | None = None
    speedup: Ratio | None = None
    fidelity: Fidelity | None = None
    disk_bytes: int | None = None
    rss_bytes: int | None = None
    peak_rss_bytes: int | None = None
    load_seconds: float | None = None
    facts: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The fields, JSON-like."""
        return asdict(self)


def run_workload(workload: Workload, variants: Sequence[Variant], settings: Settings) -> list[Result]:
    """Runs all variants of a workload in turns. One that fails is reported, and the others go on.

    The first variant that works is the baseline of the speed-ups; outputs are compared with those of the first
    variant in float32 (by name: `fp32...`), or else of the first.
    """
    folder = settings.folder / workload.name
    export = folder / "export"
    if not (export / "requests.npz").exists():
        export_workload(workload, export)
    results = {variant.name: Result(variant.name) for variant in variants}
    workers: dict[str, WorkerProcess] = {}
    try:
        for variant in variants:
            logger.info(f"{workload.name}: preparing {variant.name}")
            try:
                workers[variant.name] = _start(variant, folder, workload, settings)
            except (WorkerError, RuntimeError) as error:
                results[variant.name].error = str(error)
                logger.warning(str(error))
        if workers:
            _measure(workers, results, workload, folder, settings)
    finally:
        for worker in workers.values():
            worker.close()
    return list(results.values())


def export_workload(workload: Workload, export: Path) -> None:
    """Saves the float32 model, the requests and the calibration sequences, which all variants start from."""
    shutil.rmtree(export, ignore_errors=True)
    requests, calibration = make_requests(workload)
    load_model(workload.model).save_pretrained(export)
    np.savez(export / "calibration.npz", calibration)
    np.savez(export / "requests.npz", *requests)  # the last: complete when it is there


def _start(variant: Variant, folder: Path, workload: Workload, settings: Settings) -> WorkerProcess:
    return WorkerProcess(
        variant,
        interpreter(variant.environment, settings.environments),
        folder / "export",
        folder / variant.name,
        settings.threads,
        settings.cores,
        workload.varies,
        settings.preload,
    )


def _measure(
    workers: dict[str, WorkerProcess],
    results: dict[str, Result],
    workload: Workload,
    folder: Path,
    settings: Settings,
) -> None:
    turns = alternate(workers, len(workload.lengths), settings.rounds, settings.seconds_per_turn, settings.warmup)
    baseline = turns[next(iter(workers))]
    outputs = {}
    for name, worker in workers.items():
        file = folder / f"{name}.outputs.npz"
        worker.ask(save_outputs=str(file))
        outputs[name] = load_ids(file)
        file.unlink()
    reference = outputs[next((name for name in workers if name.startswith("fp32")), next(iter(workers)))]
    for name, worker in workers.items():
        result, memory = results[name], worker.ask(memory=True)
        result.latency = Latency.of(turns[name], settings.threads)
        result.speedup = speedup(baseline, turns[name], workload.varies)
        result.fidelity = compare(reference, outputs[name])
        result.disk_bytes = sum(file.stat().st_size for file in (folder / name).rglob("*") if file.is_file())
        result.rss_bytes, result.peak_rss_bytes = memory["rss"], memory["peak_rss"]
        result.load_seconds = worker.ready["seconds"]
        result.facts = {key: value for key, value in worker.ready.items() if key != "seconds"}
