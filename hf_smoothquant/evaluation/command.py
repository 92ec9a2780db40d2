"""The command line that the accuracy scripts share."""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from accelerate import PartialState

from hf_smoothquant.arguments import whole
from hf_smoothquant.config import DEFAULT_ALPHA
from hf_smoothquant.evaluation.modes import KINDS, all_modes, is_quantized
from hf_smoothquant.evaluation.nli import NliTask
from hf_smoothquant.evaluation.runner import run_mode
from hf_smoothquant.evaluation.squad import SquadTask
from hf_smoothquant.evaluation.table import markdown, save, summarize

FLOAT_AND_INT8 = ("fp32", "bf16", "static", "dynamic")


def main(evaluate: Callable[[Sequence[str] | None], dict], make_demo: Callable[[Path], list[str]]) -> None:
    """Runs a script: with the user's arguments, or with those for a tiny model and data where `--demo` is one.

    What is wrong with the input is said in one line, and the process ends with 1.
    """
    arguments = sys.argv[1:]
    try:
        if "--demo" not in arguments:
            evaluate(arguments)
            return
        with tempfile.TemporaryDirectory() as folder:
            rest = [argument for argument in arguments if argument != "--demo"]
            evaluate([*make_demo(Path(folder)), *rest])
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")


def evaluate_squad(arguments: Sequence[str] | None = None) -> dict:
    """`examples/evaluate_squad.py`: parses the command line, evaluates, prints and saves the table; returns it."""
    parser = _parser("Exact match and F1 on SQuAD 1.1 of a model in float and in int8.", "rajpurkar/squad")
    parser.add_argument("--split", default="validation", help="split of a hub dataset (default: %(default)s)")
    parser.add_argument("--max-length", type=whole, default=384, help="tokens of question and window")
    parser.add_argument("--stride", type=whole, default=128, help="tokens by which windows overlap")
    parser.add_argument("--max-answer-length", type=whole, default=30, help="tokens of an answer at most")
    parser.add_argument("--batch-size", type=whole, default=16)
    options = parser.parse_args(arguments)
    task = SquadTask.load(
        options.data,
        options.split,
        options.samples,
        max_length=options.max_length,
        stride=options.stride,
        max_answer_length=options.max_answer_length,
        batch_size=options.batch_size,
    )
    return _evaluate(task, options, options.output)


def evaluate_mnli(arguments: Sequence[str] | None = None) -> dict[str, dict]:
    """`examples/evaluate_mnli.py`: as `evaluate_squad`; returns a table for each split."""
    parser = _parser("Accuracy on MNLI of a model in float and in int8.", "nyu-mll/multi_nli")
    parser.add_argument(
        "--splits",
        nargs="+",
        default=["validation_matched", "validation_mismatched"],
        help="splits of a hub dataset (default: both); a file is one split",
    )
    parser.add_argument("--labels", nargs=3, help="names of the model's classes in order, if it doesn't name them")
    parser.add_argument("--max-length", type=whole, default=128, help="tokens of a pair at most")
    parser.add_argument("--batch-size", type=whole, default=32)
    options = parser.parse_args(arguments)
    splits = [Path(options.data).stem] if Path(options.data).is_file() else options.splits
    summaries = {}
    for split in splits:
        task = NliTask.load(
            options.data,
            split,
            options.samples,
            labels=options.labels,
            max_length=options.max_length,
            batch_size=options.batch_size,
        )
        summaries[split] = _evaluate(task, options, options.output / split if len(splits) > 1 else options.output)
    return summaries


def _parser(description: str, data: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=description,
        epilog="A run that was stopped goes on where it was when it is started again. `accelerate launch` shares the "
        "examples between processes.",
    )
    parser.add_argument("model", help="folder or hub id")
    parser.add_argument("--data", default=data, help="hub id or local file (default: %(default)s)")
    parser.add_argument("--samples", type=whole, help="evaluate that many examples, drawn at random (default: all)")
    parser.add_argument("--modes", nargs="+", choices=KINDS, help="default: fp32, bf16, static and dynamic, or saved")
    parser.add_argument("--alpha", nargs="+", type=_alpha, default=[DEFAULT_ALPHA], help="numbers or auto")
    parser.add_argument(
        "--calibration",
        nargs="+",
        default=["builtin"],
        help="what int8 models are calibrated on: builtin, local files, hub ids",
    )
    parser.add_argument(
        "--fallback",
        nargs="+",
        type=_budget,
        default=[None],
        metavar="DB",
        help="budgets of output SQNR in dB, or none: leave the worst layers dynamic or in float",
    )
    parser.add_argument("--autocast", action="store_true", help="bfloat16 between the int8 Linears")
    parser.add_argument("--compile", action="store_true", help="int8 models through TorchInductor, not eager")
    parser.add_argument("-o", "--output", type=Path, default=Path("evaluation"), help="folder (default: %(default)s)")
    return parser


def _evaluate(task: SquadTask | NliTask, options: argparse.Namespace, folder: Path) -> dict:
    flattering = [source for source in options.calibration if Path(source).resolve() == Path(options.data).resolve()]
    if flattering and Path(options.data).exists():
        raise ValueError(f"{options.data} is the evaluation data: calibrating on it would flatter the int8 models.")
    kinds = options.modes or (["saved"] if is_quantized(options.model) else FLOAT_AND_INT8)
    modes = all_modes(kinds, options.alpha, options.calibration, options.fallback, options.autocast, options.compile)
    state = PartialState(cpu=True)
    outcomes = [run_mode(task, mode, options.model, folder / "predictions", state) for mode in modes]
    data = Path(options.data).name if Path(options.data).exists() else options.data
    model = Path(options.model).resolve().name if Path(options.model).exists() else options.model
    summary = summarize(task, outcomes, model, data)
    if state.is_main_process:
        save(summary, folder)
        print(markdown(summary))
    return summary


def _alpha(text: str) -> float | str:
    return text if text == "auto" else float(text)


def _budget(text: str) -> float | None:
    return None if text == "none" else float(text)
