"""Perplexity of a causal language model in float32 and in int8, static and dynamic, on a text file.

    python examples/perplexity.py MODEL TEXT [--gguf-file FILE] [--windows 40] [--length 512]

MODEL is a folder or hub id; with `--gguf-file` the folder of that file (`pip install gguf`), read as floats.
"""

import argparse
import math
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, logging

from hf_smoothquant import SmoothQuantConfig

MODES = {"fp32": None, "int8 static": "static", "int8 dynamic": "dynamic"}


@torch.no_grad()
def perplexity(model: PreTrainedModel, windows: torch.Tensor) -> float:
    """`exp` of the mean negative log-likelihood of each token but the first of each window, `[n, length]`, of ids."""
    total = 0.0
    for window in windows:
        logits = model(window[None], use_cache=False).logits[0, :-1].float()
        total += torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum").item()
    return math.exp(total / windows[:, 1:].numel())


def save_as_float(folder: str, gguf_file: str, out: Path) -> None:
    """Writes the model in `gguf_file` as a float checkpoint: transformers doesn't save one it has read from GGUF."""
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=gguf_file, dtype=torch.float32)
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    floats = type(model)(type(model.config).from_dict(config))
    floats.load_state_dict(model.state_dict())
    floats.save_pretrained(out)
    AutoTokenizer.from_pretrained(folder, gguf_file=gguf_file).save_pretrained(out)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--gguf-file")
    parser.add_argument("--windows", type=int, default=40)
    parser.add_argument("--length", type=int, default=512)
    args = parser.parse_args(arguments)
    logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        name = args.model
        if args.gguf_file:
            save_as_float(name, args.gguf_file, Path(folder))
            name = folder
        ids = AutoTokenizer.from_pretrained(name)(args.text.read_text(encoding="utf-8")).input_ids
        count = min(len(ids) // args.length, args.windows)
        if not count:
            parser.error(f"{args.text} has {len(ids)} tokens, fewer than one window of {args.length}")
        windows = torch.tensor(ids[: count * args.length]).reshape(count, args.length)
        results = {}
        for mode, activation in MODES.items():
            quantization = {"quantization_config": SmoothQuantConfig(activation=activation)} if activation else {}
            model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32, **quantization).eval()
            results[mode] = perplexity(model, windows)
            print(f"{mode}: {results[mode]:.3f} on {count} windows of {args.length} tokens", flush=True)
    return results


if __name__ == "__main__":
    main()
