"""Results: JSON for programs, markdown for readers."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_smoothquant.benchmark.runner import Result
from hf_smoothquant.benchmark.workloads import Workload

HEADER = ("variant", "ms", "p90", "speed-up [quartiles]", "SQNR dB", "cosine", "disk MB", "RSS MB", "peak MB", "busy")


def summarize(workload: Workload, results: Sequence[Result]) -> dict[str, Any]:
    """One workload and its results, JSON-like."""
    return {
        "workload": workload.name,
        "model": workload.model if not Path(workload.model).exists() else Path(workload.model).resolve().name,
        "batch": workload.batch,
        "lengths": list(workload.lengths),
        "shape": workload.shape,
        "varies": workload.varies,
        "results": [result.to_dict() for result in results],
    }


def markdown(summary: dict[str, Any]) -> str:
    """The table of one workload: a row for each variant, speed-ups over the first that has figures."""
    typical = "mean" if summary["varies"] else "median"
    rows = [_row(result, typical) for result in summary["results"]]
    notes = [f"- {result['name']}: {result['error']}" for result in summary["results"] if result["error"]]
    lines = ["| " + " | ".join(row) + " |" for row in (HEADER, ["---"] * len(HEADER), *rows)]
    title = f"{summary['workload']}: {summary['model']}, {summary['shape']} ({typical} times)"
    return "\n".join([title, "", *lines, *(["", *notes] if notes else [])]) + "\n"


def save(summaries: Sequence[dict[str, Any]], environment: dict[str, Any], folder: Path) -> None:
    """Writes `benchmark.json` and `benchmark.md`."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {"environment": environment, "workloads": list(summaries)}
    (folder / "benchmark.json").write_text(json.dumps(document, indent=1))
    text = "\n".join([_conditions(environment), *(markdown(summary) for summary in summaries)])
    (folder / "benchmark.md").write_text(text)


def _row(result: dict[str, Any], typical: str) -> list[str]:
    if result["error"]:
        return [result["name"], "failed", *[""] * (len(HEADER) - 2)]
    latency, ratio, fidelity = result["latency"], result["speedup"], result["fidelity"]
    return [
        result["name"],
        f"{latency[typical]:.2f}",
        f"{latency['p90']:.2f}",
        f"{ratio['median']:.2f}x [{ratio['low']:.2f}, {ratio['high']:.2f}]",
        f"{fidelity['sqnr_db']:.1f}",
        f"{fidelity['cosine']:.5f}",
        *(f"{result[key] / 1e6:.0f}" for key in ("disk_bytes", "rss_bytes", "peak_rss_bytes")),
        f"{latency['busy']:.2f}",
    ]


def _conditions(environment: dict[str, Any]) -> str:
    packages = ", ".join(f"{name} {number}" for name, number in environment["packages"].items() if number)
    cores = ", ".join(map(str, environment["cores"])) or "not pinned"
    return (
        f"{environment['cpu']} ({' '.join(environment['flags'])}), {environment['threads']} thread(s), cores: {cores}; "
        f"{packages}; load at the start {environment['load_at_start'][0]}.\n\n`busy` is CPU time over wall time and "
        "threads: well below 1 means that other processes took the cores away.\n"
    )
