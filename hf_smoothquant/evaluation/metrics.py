"""SQuAD's exact match and F1, and accuracy, as `evaluate` metrics that need no network."""

import collections
import re
import string

import datasets
import evaluate

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
CITATION = "Rajpurkar et al. 2016, SQuAD: 100,000+ Questions for Machine Comprehension of Text, section 6.1"


def normalize_answer(text: str) -> str:
    """Lower case, without punctuation, articles and superfluous white space (SQuAD, section 6.1)."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def exact_match(prediction: str, answer: str) -> float:
    """1 if the two are the same after normalization, else 0."""
    return float(normalize_answer(prediction) == normalize_answer(answer))


def f1(prediction: str, answer: str) -> float:
    """Harmonic mean of precision and recall over the bags of words of the normalized texts."""
    predicted, expected = normalize_answer(prediction).split(), normalize_answer(answer).split()
    common = sum((collections.Counter(predicted) & collections.Counter(expected)).values())
    return 2 * common / (len(predicted) + len(expected)) if common else 0.0


class Squad(evaluate.Metric):
    """The hub's `squad` metric: same inputs, same numbers, without a download."""

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        answers = datasets.Sequence({"text": text, "answer_start": datasets.Value("int32")})
        return evaluate.MetricInfo(
            description="Percentages of exact matches and mean word F1, over the best of each question's answers.",
            citation=CITATION,
            features=datasets.Features(
                {
                    "predictions": {"id": text, "prediction_text": text},
                    "references": {"id": text, "answers": answers},
                }
            ),
        )

    def _compute(self, predictions: list[dict], references: list[dict]) -> dict[str, float]:
        texts = {prediction["id"]: prediction["prediction_text"] for prediction in predictions}
        scores = [
            [
                max(score(texts.get(reference["id"], ""), answer) for answer in reference["answers"]["text"])
                for score in (exact_match, f1)
            ]
            for reference in references
        ]
        return {
            name: 100 * sum(values) / len(scores)
            for name, values in zip(("exact_match", "f1"), zip(*scores, strict=True), strict=True)
        }


class Accuracy(evaluate.Metric):
    """The hub's `accuracy` metric: the share of predictions that equal their reference."""

    def _info(self) -> evaluate.MetricInfo:
        label = datasets.Value("int32")
        return evaluate.MetricInfo(
            description="Share of right predictions.",
            citation="",
            features=datasets.Features({"predictions": label, "references": label}),
        )

    def _compute(self, predictions: list[int], references: list[int]) -> dict[str, float]:
        right = sum(prediction == reference for prediction, reference in zip(predictions, references, strict=True))
        return {"accuracy": right / len(references)}


def load_metric(name: str) -> tuple[evaluate.Metric, str]:
    """The hub's metric where it can be reached, else the one of this module, and which it is.

    Args:
        name (`str`): `"squad"` or `"accuracy"`.
    """
    own = {"squad": Squad, "accuracy": Accuracy}[name]
    try:
        return evaluate.load(name), "hub"
    except Exception:  # no network, no cache, or a hub that doesn't serve metric scripts: the numbers are the same
        return own(), "hf_smoothquant"
