"""What every worker speaks: JSON lines on stdin and stdout. Standard library and NumPy only, so that any venv has it.

A worker is a script that is called with a job (JSON): `{"stage", "export", "artifact", "threads", "cores", "options"}`.
With the stage `"convert"` it turns the exported float model into what its engine loads, and ends. With `"serve"` it
loads that, says `{"ready": ...}` and answers

- `{"run": [index, ...]}` with `{"seconds": [...], "cpu_seconds": [...]}`, one for each request run, in order;
- `{"save_outputs": file}` with `{"saved": count}`, having written the last hidden states as `.npz`;
- `{"memory": true}` with the resident memory in bytes, now and at its peak.

Whatever libraries print goes to stderr, the log.
"""

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

ENGINE_LIBRARIES = ("libgomp", "libiomp5", "libomp", "libtbb", "libtcmalloc", "libjemalloc", "libmimalloc")


class Engine(Protocol):
    """What a worker's `load` returns."""

    facts: dict[str, Any]

    def prepare(self, ids: np.ndarray) -> Any:
        """Token ids `[batch, length]`, int64, in the engine's form; not timed."""

    def run(self, inputs: Any) -> Any:
        """One request; timed."""

    def to_numpy(self, output: Any) -> np.ndarray:
        """The last hidden states, `[batch, length, hidden]`, of what `run` returned."""


def main(convert: Callable[[Path, Path, dict], None], load: Callable[[Path, dict], Engine]) -> None:
    """Does the job in `sys.argv[1]`.

    Args:
        convert (`Callable`): `(export, artifact, options)`: fills the folder `artifact`.
        load (`Callable`): `(artifact, options)` to an `Engine`.
    """
    job = json.loads(sys.argv[1])
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if job["cores"]:
        os.sched_setaffinity(0, job["cores"])
    export, artifact, options = (
        Path(job["export"]),
        Path(job["artifact"]),
        {**job["options"], "threads": job["threads"]},
    )
    if job["stage"] == "convert":
        artifact.mkdir(parents=True)
        convert(export, artifact, options)
        return
    start = time.perf_counter()
    engine = load(artifact, options)
    requests = [engine.prepare(ids) for ids in load_ids(export / "requests.npz")]
    engine.run(requests[0])
    seconds = time.perf_counter() - start
    _say(replies, ready={"seconds": seconds, "libraries": loaded_libraries(), **engine.facts})
    for line in sys.stdin:
        _say(replies, **_answer(json.loads(line), engine, requests))


def load_ids(file: Path) -> list[np.ndarray]:
    """Arrays of an `.npz` in the order in which they were saved."""
    with np.load(file) as arrays:
        return [arrays[name] for name in arrays.files]


def as_inputs(ids: np.ndarray) -> dict[str, np.ndarray]:
    """Ids and a mask of ones, `[batch, length]`, int64."""
    ids = np.ascontiguousarray(ids)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def loaded_libraries() -> list[str]:
    """Which OpenMP runtimes, thread pools and allocators are in this process."""
    names = {
        line.rsplit("/", 1)[-1].strip() for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line
    }
    return sorted(name for name in names if name.startswith(ENGINE_LIBRARIES))


def memory() -> dict[str, int]:
    """Resident memory of this process in bytes: `rss` now, after freeing what can be freed, and `peak_rss`."""
    gc.collect()
    _trim_heap()
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {key: int(fields[field].split()[0]) * 1024 for key, field in (("rss", "VmRSS"), ("peak_rss", "VmHWM"))}


def _answer(command: dict[str, Any], engine: Engine, requests: list[Any]) -> dict[str, Any]:
    if "run" in command:
        return time_requests(engine, [requests[index] for index in command["run"]])
    if "save_outputs" in command:
        outputs = [engine.to_numpy(engine.run(request)) for request in requests]
        np.savez(command["save_outputs"], *outputs)
        return {"saved": len(outputs)}
    return memory()


def time_requests(engine: Engine, requests: list[Any]) -> dict[str, list[float]]:
    """Runs the requests in order. The CPU time of all threads beside the wall time shows when another process took the
    core away."""
    seconds, cpu_seconds = [], []
    for request in requests:
        cpu_start, start = time.process_time(), time.perf_counter()
        engine.run(request)
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.process_time() - cpu_start)
    return {"seconds": seconds, "cpu_seconds": cpu_seconds}


def _trim_heap() -> None:
    import ctypes

    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):  # glibc
        libc.malloc_trim(0)


def _say(stream: Any, **message: Any) -> None:
    stream.write(json.dumps(message) + "\n")
    stream.flush()
