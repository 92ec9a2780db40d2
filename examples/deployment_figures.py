"""The figures of docs/deployment.md, on a BERT shape with random weights (no network).

python examples/deployment_figures.py lengths    # what dynamic lengths cost against one compilation per length
python examples/deployment_figures.py cache      # what a second process pays for compiling and for loading
python examples/deployment_figures.py memory     # resident memory while loading and running
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from transformers import AutoModel, BertConfig, BertModel

import hf_smoothquant
from hf_smoothquant import SmoothQuantConfig

LENGTHS = (16, 64, 128, 256)
MODES = ("import", "fp32", "eager", "compiled", "package")


def request(length: int) -> dict[str, torch.Tensor]:
    """One request of random tokens."""
    ids = torch.randint(1000, 30_000, (1, length), generator=torch.Generator().manual_seed(length))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def prepare(folder: Path, layers: int, package: bool = True) -> None:
    """Saves a float model, its int8 checkpoint and the package of that into `folder`."""
    torch.manual_seed(0)
    BertModel(BertConfig(num_hidden_layers=layers)).save_pretrained(folder / "fp32")
    config = SmoothQuantConfig(dataset=[request(length) for length in LENGTHS])
    model = AutoModel.from_pretrained(folder / "fp32", quantization_config=config)
    model.save_pretrained(folder / "eager")
    if package:
        hf_smoothquant.export(model, request(128), folder / "package")


@torch.no_grad()
def lengths(folder: Path, rounds: int) -> None:
    """Prints medians per length of: one compilation for each, one for all, the package. They take turns."""
    model = AutoModel.from_pretrained(folder / "eager")
    static = hf_smoothquant.compile(model, dynamic=False)
    variants = {
        "compiled for the length": static,
        "compiled, dynamic": hf_smoothquant.compile(model, dynamic=True),
        "package, dynamic": hf_smoothquant.load(folder / "package"),
    }
    times = {(name, length): [] for name in variants for length in LENGTHS}
    for turn in range(rounds + 1):
        for (name, length), values in times.items():
            inputs = request(length)
            for _ in range(5):
                start = time.perf_counter()
                variants[name](**inputs)
                if turn:  # the first turn compiles
                    values.append(time.perf_counter() - start)
    print(f"{'ms':25}" + "".join(f"{length:>10}" for length in LENGTHS))
    for name in variants:
        print(f"{name:25}" + "".join(f"{1e3 * statistics.median(times[name, length]):10.2f}" for length in LENGTHS))


def resident() -> dict[str, float]:
    """Resident memory of this process in MB: at its peak, now, and now without what is backed by files.

    Not from `getrusage`, whose peak a process inherits from the one that started it.
    """
    status = Path("/proc/self/status").read_text()
    return {key: int(re.search(rf"{key}:\s+(\d+)", status).group(1)) / 1e3 for key in ("VmHWM", "VmRSS", "RssAnon")}


@torch.no_grad()
def once(mode: str, folder: Path) -> None:
    """In a process of its own: loads and runs one mode; prints seconds and memory."""
    start = time.perf_counter()
    if mode == "import":
        from torch._inductor import compile_fx  # noqa: F401 (what every mode has in memory at most)
    elif mode == "package":
        model = hf_smoothquant.load(folder / mode)
    else:
        model = AutoModel.from_pretrained(folder / {"compiled": "eager"}.get(mode, mode))
        if mode == "compiled":
            model = hf_smoothquant.compile(model, dynamic=True)
    loaded = time.perf_counter()
    if mode != "import":
        model(**request(128))
    first = time.perf_counter()
    if mode != "import":
        for length in LENGTHS:
            model(**request(length))
    counters = torch._dynamo.utils.counters
    cache = {**counters["inductor"], **counters["aot_autograd"]}
    cache = ", ".join(f"{key} {value}" for key, value in cache.items() if "cache" in key) if mode == "compiled" else ""
    now = resident()
    print(
        f"{mode:10} load {loaded - start:7.2f} s, first call {first - loaded:7.2f} s; peak {now['VmHWM']:6.0f} MB, "
        f"then {now['VmRSS']:6.0f} MB ({now['RssAnon']:.0f} MB anonymous) {cache}",
        flush=True,
    )


def fresh(mode: str, folder: Path, **environment: str) -> None:
    """`once` in a fresh process."""
    command = [sys.executable, __file__, "once", "--mode", mode, "--folder", folder]
    subprocess.run(command, env=os.environ | environment, check=True)


def main(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(arguments.threads)
    if arguments.what == "once":
        once(arguments.mode, arguments.folder)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        if not (folder / "package").exists():
            prepare(folder, arguments.layers)
        if arguments.what == "lengths":
            lengths(folder, arguments.rounds)
        elif arguments.what == "memory":
            for mode in MODES:
                fresh(mode, folder)
        else:
            for mode in ("compiled", "compiled", "package"):
                fresh(mode, folder, TORCHINDUCTOR_CACHE_DIR=str(Path(temporary) / "cache"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("lengths", "cache", "memory", "once"))
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--folder", type=Path, help="keeps the models there for the next call")
    parser.add_argument("--mode", choices=MODES, help=argparse.SUPPRESS)
    main(parser.parse_args())
