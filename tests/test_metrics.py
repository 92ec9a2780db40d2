"""Our metric modules against hand-computed values and torchmetrics' SQuAD."""

import pytest

pytest.importorskip("evaluate")

from hf_smoothquant.evaluation.metrics import Accuracy, Squad, exact_match, f1, load_metric, normalize_answer

CASES = [  # prediction, answers, exact match, F1 in percent
    ("The  Cat!", ["cat"], 100, 100),
    ("black cat", ["cat"], 0, 100 * 2 / 3),  # precision 1/2, recall 1
    ("a cat, a dog", ["cat dog bird", "dog"], 0, 80),  # "cat dog": precision 1, recall 2/3
    ("", ["cat"], 0, 0),
    ("dog", ["cat"], 0, 0),
    ("cat cat", ["cat"], 0, 100 * 2 / 3),  # a word counts as often as it occurs in both
    ("ice-cream", ["icecream"], 100, 100),
]


def inputs(cases):
    predictions = [{"id": str(index), "prediction_text": case[0]} for index, case in enumerate(cases)]
    references = [
        {"id": str(index), "answers": {"text": case[1], "answer_start": [0] * len(case[1])}}
        for index, case in enumerate(cases)
    ]
    return {"predictions": predictions, "references": references}


def test_normalization():
    assert normalize_answer(" The Quick, brown  fox; an 'owl'.") == "quick brown fox owl"


@pytest.mark.parametrize(("prediction", "answers", "em", "score"), CASES)
def test_scores_of_one_answer(prediction, answers, em, score):
    assert 100 * max(exact_match(prediction, answer) for answer in answers) == em
    assert 100 * max(f1(prediction, answer) for answer in answers) == pytest.approx(score)


def test_squad_is_the_mean_over_questions():
    result = Squad().compute(**inputs(CASES))
    assert result["exact_match"] == pytest.approx(200 / 7)
    assert result["f1"] == pytest.approx((100 + 200 / 3 + 80 + 0 + 0 + 200 / 3 + 100) / 7)


def test_squad_equals_torchmetrics():
    oracle = pytest.importorskip("torchmetrics.text")
    data = inputs(CASES)
    expected = oracle.SQuAD()(data["predictions"], data["references"])
    result = Squad().compute(**data)
    assert result["exact_match"] == pytest.approx(expected["exact_match"].item(), abs=1e-4)
    assert result["f1"] == pytest.approx(expected["f1"].item(), abs=1e-4)


def test_accuracy():
    assert Accuracy().compute(predictions=[0, 1, 2, 2], references=[0, 1, 1, 2]) == {"accuracy": 0.75}


def test_without_a_hub_the_own_metrics_serve():
    metric, origin = load_metric("squad")
    assert origin == "hf_smoothquant" and isinstance(metric, Squad)
