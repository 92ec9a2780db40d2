"""Extractive question answering on texts longer than the model takes: windows of tokens, and the best span of all.

The method is that of BERT's SQuAD script (Devlin et al. 2019, section 4.2).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass
class Feature:
    """One window of a context, with its question.

    Attributes:
        example (`int`): index of the question.
        inputs (`dict[str, list[int]]`): what the tokenizer made: `input_ids`, `attention_mask`, ...
        offsets (`np.ndarray`): `[tokens, 2]`, first and last + 1 character of each token in the context, -1 for tokens
            that aren't of the context.
    """

    example: int
    inputs: dict[str, list[int]]
    offsets: np.ndarray


@dataclass(frozen=True)
class Answer:
    """A span of the context and the sum of its start and end logits."""

    text: str
    score: float


def make_features(
    tokenizer: Any, questions: Sequence[str], contexts: Sequence[str], max_length: int = 384, stride: int = 128
) -> list[Feature]:
    """Cuts each context into windows that overlap by `stride` tokens.

    Args:
        tokenizer: a fast tokenizer: one that knows the characters of each token.
        questions, contexts (`Sequence[str]`): of the same length.
        max_length (`int`): tokens of question and window together.
        stride (`int`): tokens that a window shares with the one before.

    Raises:
        `ValueError`: the tokenizer isn't a fast one, or a question leaves no room for its context.
    """
    if not tokenizer.is_fast:
        raise ValueError(
            f"{type(tokenizer).__name__} doesn't know where its tokens are in the text. Question answering needs a "
            "fast tokenizer (one with a tokenizer.json)."
        )
    questions = [question.strip() for question in questions]
    room = max_length - tokenizer.num_special_tokens_to_add(pair=True) - stride
    for question in questions:
        length = len(tokenizer(question, add_special_tokens=False)["input_ids"])
        if length >= room:
            raise ValueError(
                f"A question of {length} tokens leaves no room for windows that overlap by {stride} tokens in "
                f"max_length={max_length}: raise max_length or lower the stride. The question: {question[:80]!r}"
            )
    encoded = tokenizer(
        questions,
        list(contexts),
        truncation="only_second",
        max_length=max_length,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    names = [name for name in encoded if name in tokenizer.model_input_names]
    features = []
    for index, example in enumerate(encoded["overflow_to_sample_mapping"]):
        in_context = np.array([sequence == 1 for sequence in encoded.sequence_ids(index)])
        offsets = np.where(in_context[:, None], np.array(encoded["offset_mapping"][index]), -1)
        features.append(Feature(example, {name: encoded[name][index] for name in names}, offsets))
    return features


def best_answer(
    context: str,
    features: Sequence[Feature],
    start_logits: Sequence[np.ndarray],
    end_logits: Sequence[np.ndarray],
    n_best: int = 20,
    max_answer_length: int = 30,
) -> Answer:
    """The span with the highest sum of logits among the `n_best` starts times `n_best` ends of every window.

    Args:
        context (`str`): the text that the features are windows of.
        features (`Sequence[Feature]`): all windows of one question.
        start_logits, end_logits (`Sequence[np.ndarray]`): `[tokens]` for each window, float.
        n_best (`int`): starts and ends to consider in each window.
        max_answer_length (`int`): in tokens.

    Returns:
        `Answer`: with an empty text where no span is possible.
    """
    best = Answer("", -np.inf)
    for feature, start_row, end_row in zip(features, start_logits, end_logits, strict=True):
        tokens = len(feature.offsets)
        starts = np.argsort(-start_row[:tokens], kind="stable")[:n_best]
        ends = np.argsort(-end_row[:tokens], kind="stable")[:n_best]
        lengths = ends[None, :] - starts[:, None] + 1
        allowed = (lengths >= 1) & (lengths <= max_answer_length)
        allowed &= (feature.offsets[starts, 0] >= 0)[:, None] & (feature.offsets[ends, 0] >= 0)[None, :]
        scores = np.where(allowed, start_row[starts][:, None] + end_row[ends][None, :], -np.inf)
        first, last = np.unravel_index(np.argmax(scores), scores.shape)
        if scores[first, last] > best.score:
            span = feature.offsets[starts[first], 0], feature.offsets[ends[last], 1]
            best = Answer(context[span[0] : span[1]], float(scores[first, last]))
    return best
