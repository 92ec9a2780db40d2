"""`python -m hf_smoothquant.benchmark`."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from transformers.utils import logging

from hf_smoothquant.arguments import whole
from hf_smoothquant.benchmark.environment import describe
from hf_smoothquant.benchmark.runner import Settings, run_workload
from hf_smoothquant.benchmark.shapes import PRESETS
from hf_smoothquant.benchmark.table import markdown, save, summarize
from hf_smoothquant.benchmark.variants import KINDS, default_environments, parse_mode, parse_peers
from hf_smoothquant.benchmark.workloads import SUITES, WORKLOADS, Workload, read_lengths


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command; what is wrong with its arguments is said in one line, and the process ends with 1."""
    options = build_parser().parse_args(arguments)
    logging.set_verbosity_info()
    for library in ("transformers", "hf_smoothquant"):
        logging.get_logger(library).setLevel("WARNING" if library == "transformers" else "INFO")
    try:
        benchmark(options)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")


def benchmark(options: argparse.Namespace) -> dict:
    """Runs what the parsed `options` ask for, prints the tables as they come, and returns the last one."""
    variants = [*map(parse_mode, options.modes), *parse_peers(options.peers)]
    workloads = [workload for target in options.targets for workload in find_workloads(target, options)]
    cores = options.cores if options.cores is not None else sorted(os.sched_getaffinity(0))[: options.threads]
    settings = Settings(
        folder=options.output / "work",
        environments=options.environments,
        threads=options.threads,
        cores=tuple(cores),
        preload=tuple(options.preload),
        rounds=options.rounds,
        seconds_per_turn=options.seconds,
        warmup=options.warmup,
    )
    environment = describe(options.threads, list(cores), options.preload)
    summaries = []
    for workload in workloads:
        summaries.append(summarize(workload, run_workload(workload, variants, settings)))
        save(summaries, environment, options.output)
        print(markdown(summaries[-1]), flush=True)
    return summaries[-1]


def find_workloads(target: str, options: argparse.Namespace) -> list[Workload]:
    """A suite, a named workload, or a model or preset in the shape that the options give."""
    if target in SUITES:
        return list(SUITES[target])
    if target in WORKLOADS:
        return [WORKLOADS[target]]
    lengths = read_lengths(options.lengths) if options.lengths else (options.length,)
    name = target if target in PRESETS else Path(target).name
    shape = options.lengths.stem if options.lengths else f"s{options.length}"
    return [Workload(f"{name}-b{options.batch}-{shape}", target, options.batch, lengths)]


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m hf_smoothquant.benchmark",
        description="Latency, output error, size and memory of a model in float and int8, and in other engines, "
        "measured in turns.",
    )
    parser.add_argument(
        "targets",
        nargs="+",
        metavar="MODEL_OR_PRESET",
        help=f"folder or hub id; shape with random weights: {', '.join(PRESETS)}; workload: {', '.join(WORKLOADS)}; "
        f"all of these workloads: {', '.join(SUITES)}",
    )
    parser.add_argument("--batch", type=whole, default=1, help="sequences in a request (default: %(default)s)")
    parser.add_argument("--length", type=whole, default=128, help="tokens in a sequence (default: %(default)s)")
    parser.add_argument("--lengths", type=Path, metavar="FILE", help="traffic: unpadded requests, one length a line")
    parser.add_argument("--modes", nargs="*", default=KINDS, help="fp32 bf16 static dynamic, with +eager +autocast ...")
    parser.add_argument("--peers", nargs="*", default=[], help="other engines: all, openvino, openvino-int8, ...")
    parser.add_argument("--threads", type=whole, default=1, help="of each worker (default: %(default)s)")
    parser.add_argument("--cores", type=int, nargs="*", help="to pin to (default: as many as threads; none: don't pin)")
    parser.add_argument("--preload", nargs="*", default=[], help="libraries to load first: libtcmalloc, libiomp5")
    parser.add_argument("--rounds", type=whole, default=10, help="turns of each variant (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn, about (default: %(default)s)")
    parser.add_argument("--warmup", type=int, default=1, help="untimed requests of a turn (default: %(default)s)")
    parser.add_argument("--environments", type=Path, default=default_environments(), help="folder of the peers' venvs")
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmark"), help="folder (default: %(default)s)")
    return parser
