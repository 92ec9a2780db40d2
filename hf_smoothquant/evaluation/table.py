"""The results of an evaluation: JSON for programs, a markdown table for readers."""

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from hf_smoothquant.evaluation.bootstrap import paired_difference
from hf_smoothquant.evaluation.runner import Outcome, Task

PACKAGES = ("hf_smoothquant", "torch", "torchao", "transformers", "tokenizers", "datasets", "evaluate")
TITLES = {"exact_match": "EM", "f1": "F1", "accuracy": "accuracy"}


def summarize(task: Task, outcomes: Sequence[Outcome], model: str, data: str) -> dict[str, Any]:
    """Metrics of every mode, and their differences from the first one with 95 % confidence intervals.

    Args:
        task (`Task`): the examples.
        outcomes (`Sequence[Outcome]`): the first is the baseline.
        model, data (`str`): their names, for the record.
    """
    baseline = task.scores(outcomes[0].predictions)
    modes = []
    for outcome in outcomes:
        metrics, origin = task.compute(outcome.predictions)
        scores = task.scores(outcome.predictions)
        modes.append(
            {
                **outcome.mode.to_dict(),
                "metrics": metrics,
                "difference": {name: asdict(paired_difference(baseline[name], scores[name])) for name in task.metrics},
                "changed_predictions": sum(
                    a != b for a, b in zip(outcomes[0].predictions, outcome.predictions, strict=True)
                ),
                "mean_group_sqnr_db": outcome.mean_sqnr_db,
                "fallen_back": outcome.fallen_back,
                "seconds": round(outcome.seconds, 1),
            }
        )
    return {
        "task": task.name,
        "model": model,
        "data": data,
        "examples": len(task.examples),
        "settings": task.settings,
        "metric_from": origin,
        "environment": environment(),
        "modes": modes,
    }


def markdown(summary: dict[str, Any]) -> str:
    """The table of `summarize`: a row for each mode; differences from the first row, with 95 % intervals."""
    metrics = list(summary["modes"][0]["metrics"])
    header = ["mode", "alpha", "calibrated on", "fallback", *(TITLES[name] for name in metrics)]
    header += [f"Δ {TITLES[name]} [95 %]" for name in metrics] + ["group SQNR dB"]
    rows = []
    for mode in summary["modes"]:
        kind = mode["kind"] + (" + autocast" if mode["autocast"] else "") + (", compiled" if mode["compiled"] else "")
        budget = "" if mode["min_sqnr_db"] is None else f"{mode['min_sqnr_db']:g} dB ({mode['fallen_back']} groups)"
        row = [kind, _text(mode["alpha"]), Path(mode["calibration"] or "").name, budget]
        row += [f"{mode['metrics'][name]:.2f}" for name in metrics]
        for name in metrics:
            gap = mode["difference"][name]
            row.append(f"{gap['mean']:+.2f} [{gap['low']:+.2f}, {gap['high']:+.2f}]" if rows else "")
        row.append("" if mode["mean_group_sqnr_db"] is None else f"{mode['mean_group_sqnr_db']:.1f}")
        rows.append(row)
    lines = ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows)]
    title = f"{summary['model']} on {summary['data']}, {summary['examples']:,} examples"
    return "\n".join([title, "", *lines]) + "\n"


def save(summary: dict[str, Any], folder: Path) -> None:
    """Writes `results.json` and `results.md`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(summary, indent=1))
    (folder / "results.md").write_text(markdown(summary))


def environment() -> dict[str, Any]:
    """Versions, CPU and threads: what the numbers may depend on."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return {
        "python": platform.python_version(),
        "packages": versions,
        "cpu": cpuinfo("model name", platform.processor()),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def cpuinfo(key: str, default: str = "") -> str:
    """What Linux says of the first core: `"model name"`, `"flags"`, ...; `default` where it says nothing."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(key)), default)


def _text(value: Any) -> str:
    return "" if value is None else str(value)
