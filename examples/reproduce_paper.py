"""One table for BERT-large, XLM-R base and DistilBERT: fp32, bf16, static and dynamic int8 on SQuAD 1.1 and MNLI.

    python examples/reproduce_paper.py             # downloads six models and two datasets from the hub: hours
    python examples/reproduce_paper.py --samples 500
    python examples/reproduce_paper.py --demo      # tiny random models, offline: shows the path, not accuracy

It can be stopped, and goes on where it was when it is started again. `accelerate launch` shares the work between
processes. Needs `pip install -e '.[eval]'`.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from hf_smoothquant.evaluation.command import evaluate_mnli, evaluate_squad
from hf_smoothquant.evaluation.demo import mnli_demo, squad_demo

GLUE_ORDER = ["--labels", "entailment", "neutral", "contradiction"]  # for a checkpoint that calls them LABEL_0, ...
SQUAD = [
    ["google-bert/bert-large-uncased-whole-word-masking-finetuned-squad"],
    ["deepset/xlm-roberta-base-squad2"],
    ["distilbert/distilbert-base-uncased-distilled-squad"],
]
MNLI = [
    ["yoshitomo-matsubara/bert-large-uncased-mnli", *GLUE_ORDER],
    ["symanto/xlm-roberta-base-snli-mnli-anli-xnli"],
    ["typeform/distilbert-base-uncased-mnli"],
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", help="examples of each dataset, drawn at random (default: all)")
    parser.add_argument("--demo", action="store_true")
    parser.add_argument("-o", "--output", type=Path, default=Path("paper"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        squad = [squad_demo(Path(folder))] if options.demo else SQUAD
        mnli = [mnli_demo(Path(folder))] if options.demo else MNLI
        extra = ["--samples", options.samples] if options.samples else []
        extra += [] if options.demo else ["--compile"]
        rows: dict[str, list[str]] = {}
        for evaluate, models in ((evaluate_squad, squad), (evaluate_mnli, mnli)):
            for model, *arguments in models:
                folder_of_model = options.output / Path(model).name
                found = evaluate([model, *arguments, *extra, "-o", str(folder_of_model)])
                for split, summary in found.items() if evaluate is evaluate_mnli else [("SQuAD", found)]:
                    for mode in summary["modes"]:
                        cells = " / ".join(f"{value:.2f}" for value in mode["metrics"].values())
                        rows.setdefault(f"{Path(model).name} on {split}", []).append(cells)
        kinds = [mode["kind"] for mode in summary["modes"]]
    lines = ["| | " + " | ".join(kinds) + " |", "|---" * (len(kinds) + 1) + "|"]
    lines += ["| " + " | ".join([name, *cells]) + " |" for name, cells in rows.items()]
    (options.output / "table.md").write_text("\n".join(lines) + "\n")
    print("SQuAD: exact match / F1; MNLI: accuracy.\n")
    print("\n".join(lines))


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
