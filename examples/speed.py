"""Latency of fp32, bf16 and int8 on a BERT shape with random weights, all compiled, measured in turns in one run.

python examples/speed.py                      # BERT-base, batch 1, 128 tokens, 1 thread
python examples/speed.py --layers 24 --hidden 1024 --length 256
"""

import argparse
import copy
import statistics
import time

import torch
from torch._inductor import config as inductor_config
from transformers import BertConfig, BertModel

import hf_smoothquant
from hf_smoothquant import SmoothQuantConfig
from hf_smoothquant.conversion import quantize_model


def frozen(compiled):
    """Calls `compiled` with frozen weights; `torch.compile(options=...)` would set that too late for Dynamo."""

    def call(*args):
        with inductor_config.patch(freezing=True):
            return compiled(*args)

    return call


def build(arguments: argparse.Namespace, ids: torch.Tensor) -> dict:
    """The float model and its variants, each compiled with frozen weights."""
    hidden = arguments.hidden
    config = BertConfig(
        num_hidden_layers=arguments.layers,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_attention_heads=hidden // 64,
    )
    torch.manual_seed(0)
    model = BertModel(config).eval()
    models = {
        "fp32": frozen(torch.compile(model)),
        "bf16": frozen(torch.compile(copy.deepcopy(model).bfloat16())),
    }
    for activation in ("static", "dynamic"):
        int8 = copy.deepcopy(model)
        quantize_model(int8, SmoothQuantConfig(activation=activation, dataset=[ids]))
        models[f"int8 {activation}"] = hf_smoothquant.compile(int8)
    return models


def main(arguments: argparse.Namespace) -> None:
    """Prints the median latency of each variant and its ratio to fp32."""
    torch.set_num_threads(arguments.threads)
    ids = torch.randint(0, 30_000, (arguments.batch, arguments.length))
    models = build(arguments, ids)
    times = {name: [] for name in models}
    with torch.no_grad():
        for turn in range(arguments.rounds + 1):
            for name, model in models.items():
                for _ in range(5):
                    start = time.perf_counter()
                    model(ids)
                    if turn:  # the first turn compiles and warms up
                        times[name].append(time.perf_counter() - start)
    medians = {name: 1e3 * statistics.median(values) for name, values in times.items()}
    for name, median in medians.items():
        print(f"{name:13} {median:9.2f} ms {medians['fp32'] / median:6.2f}x")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in dict(layers=12, hidden=768, batch=1, length=128, threads=1, rounds=6).items():
        parser.add_argument(f"--{option}", type=int, default=default)
    main(parser.parse_args())
