"""A variant in a process of its own, asked to run requests in turn with the others."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hf_smoothquant
from hf_smoothquant.benchmark.variants import WORKERS, Variant


class WorkerError(RuntimeError):
    """A worker ended before its time; the message is the last line of its log."""


class WorkerProcess:
    """Starts a worker (`workers/protocol.py`), having it convert the model first where no run before did.

    Args:
        variant (`Variant`): what to run.
        python (`str`): the interpreter.
        export (`Path`): folder with the float model, `requests.npz` and `calibration.npz`.
        artifact (`Path`): folder for what the engine loads.
        threads (`int`): of the engine.
        cores (`Sequence[int]`): to which the process is pinned; none pins nothing.
        varies (`bool`): whether requests differ in length.
        preload (`Sequence[str]`): shared libraries to load first (`LD_PRELOAD`): allocators, OpenMP runtimes.

    Raises:
        `WorkerError`: the worker failed.
    """

    def __init__(
        self,
        variant: Variant,
        python: str,
        export: Path,
        artifact: Path,
        threads: int = 1,
        cores: Sequence[int] = (),
        varies: bool = False,
        preload: Sequence[str] = (),
    ):
        self.variant = variant
        self._log = artifact.with_suffix(".log")
        self._log.unlink(missing_ok=True)
        self._job = {
            "export": str(export),
            "artifact": str(artifact),
            "threads": threads,
            "cores": list(cores),
            "options": {**variant.options, "varies": varies},
        }
        self._command = [python, str(WORKERS / variant.worker)]
        self._environment = _environment(threads, preload)
        if not artifact.exists():
            self._convert(artifact)
        self._process = self._start("serve", self._job)
        self.ready: dict[str, Any] = self._read()["ready"]

    def ask(self, **command: Any) -> dict[str, Any]:
        """Sends one command and returns the answer."""
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """Ends the worker."""
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _convert(self, artifact: Path) -> None:
        # Aside first: a conversion cut off leaves nothing that a later run takes for complete.
        unfinished = artifact.with_name(f"{artifact.name}.unfinished-{os.getpid()}")
        process = self._start("convert", {**self._job, "artifact": str(unfinished)})
        process.communicate()
        if process.returncode:
            raise WorkerError(f"{self.variant.name} can't convert the model: {self._last_words()}")
        unfinished.rename(artifact)

    def _start(self, stage: str, job: dict[str, Any]) -> subprocess.Popen:
        with self._log.open("a") as log:
            return subprocess.Popen(
                [*self._command, json.dumps({"stage": stage, **job})],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment,
            )

    def _read(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            raise WorkerError(f"{self.variant.name} ended: {self._last_words()}")
        return json.loads(line)

    def _last_words(self) -> str:
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return f"{lines[-1] if lines else 'no message'} (log: {self._log})"


def _environment(threads: int, preload: Sequence[str]) -> dict[str, str]:
    package = str(Path(hf_smoothquant.__file__).parents[1])
    settings = {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        # A worker that waits for its turn mustn't spin on the cores of the one that runs. GNU's OpenMP stops by itself.
        "KMP_BLOCKTIME": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")])),
    }
    if preload:
        settings["LD_PRELOAD"] = ":".join(preload)
    return {**os.environ, **settings}
