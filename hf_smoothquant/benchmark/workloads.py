"""What is run: a model, and requests of token ids that no variant pads."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from hf_smoothquant.benchmark.shapes import PRESETS, random_model
from hf_smoothquant.calibration.sources import builtin_corpus

TRAFFIC = Path(__file__).with_name("lengths.txt")
NUM_CALIBRATION = 16  # sequences


@dataclass(frozen=True)
class Workload:
    """A model and the shapes of its requests.

    Attributes:
        name (`str`): for tables and folders.
        model (`str`): a preset, a folder or a hub id.
        batch (`int`): sequences in a request.
        lengths (`tuple[int, ...]`): tokens of each request; one length measures one shape, many are traffic.
    """

    name: str
    model: str
    batch: int
    lengths: tuple[int, ...]

    def __post_init__(self):
        if not self.lengths or min(self.lengths) < 1 or self.batch < 1:
            raise ValueError(f"{self.name}: batch and lengths must be at least 1, got {self.batch}, {self.lengths}.")

    @property
    def varies(self) -> bool:
        """Whether requests differ in length: engines then get models of dynamic length."""
        return len(set(self.lengths)) > 1

    @property
    def shape(self) -> str:
        """`b1 s256`, or for traffic the number of requests and the range of their lengths."""
        if self.varies:
            return f"b{self.batch}, {len(self.lengths)} requests of {min(self.lengths)} to {max(self.lengths)} tokens"
        return f"b{self.batch} s{self.lengths[0]}"


def read_lengths(file: Path) -> tuple[int, ...]:
    """Lengths in tokens, one a line; `#` starts a comment.

    Raises:
        `ValueError`: a line is something else.
    """
    lines = [line.split("#")[0].strip() for line in file.read_text().splitlines()]
    try:
        return tuple(int(line) for line in lines if line)
    except ValueError as error:
        raise ValueError(f"{file}: expected one length in tokens a line: {error}.") from error


SUITES = {
    "encoders": (
        Workload("w1", "bert-large", 1, (256,)),
        Workload("w2", "bert-base", 1, (128,)),
        Workload("w3", "distilbert", 1, (256,)),
        Workload("w4", "bert-base", 8, (128,)),
        Workload("traffic", "bert-base", 1, read_lengths(TRAFFIC)),
    )
}
"""Named lists of workloads."""
WORKLOADS = {workload.name: workload for suite in SUITES.values() for workload in suite}


def load_model(name: str) -> PreTrainedModel:
    """The float32 model of a preset (random weights), a folder or a hub id, without a head, in eval mode."""
    if name in PRESETS:
        return random_model(name)
    return AutoModel.from_pretrained(name, dtype="float32").eval()


def make_requests(workload: Workload, seed: int = 0) -> tuple[list[np.ndarray], np.ndarray]:
    """Token ids of the requests, each `[batch, length]`, and of 16 other sequences for calibration, `[16, length]`.

    Presets get random ids. Models get windows of the built-in corpus, calibration the first and requests the rest.

    Raises:
        `ValueError`: the model doesn't take requests of that length.
    """
    longest = max(workload.lengths)
    num_rows = NUM_CALIBRATION + workload.batch * len(workload.lengths)
    is_preset = workload.model in PRESETS
    config = PRESETS[workload.model]() if is_preset else AutoConfig.from_pretrained(workload.model)
    limit = getattr(config, "max_position_embeddings", longest)
    if longest > limit:
        raise ValueError(f"{workload.model} takes up to {limit} tokens, and a request has {longest}.")
    if is_preset:
        rows = np.random.default_rng(seed).integers(0, config.vocab_size, (num_rows, longest))
    else:
        rows = _windows(AutoTokenizer.from_pretrained(workload.model), num_rows, longest)
    calibration, rows = rows[:NUM_CALIBRATION], rows[NUM_CALIBRATION:].reshape(-1, workload.batch, longest)
    return [row[:, :length] for row, length in zip(rows, workload.lengths, strict=True)], calibration


def _windows(tokenizer: PreTrainedTokenizerBase, count: int, length: int) -> np.ndarray:
    texts = ((text,) if isinstance(text, str) else text for text in builtin_corpus())
    ids = [token for text in texts for token in tokenizer(*text)["input_ids"]]
    return np.resize(np.array(ids, dtype=np.int64), (count, length))  # starts again where the corpus ends
