import numpy as np
import pytest
from conftest import write_tokenizer

from hf_smoothquant.evaluation.spans import Feature, best_answer, make_features

CONTEXT = "ab cd ef gh"  # the letter tokenizer: two tokens a word


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("letters"))


def feature(offsets):
    return Feature(0, {"input_ids": [0] * len(offsets)}, np.array(offsets))


def test_windows_overlap_and_cover_the_context(tokenizer):
    windows = make_features(tokenizer, [" xy"], [CONTEXT], max_length=10, stride=2)  # 3 special, 2 question, 5 context
    assert all(len(window.inputs["input_ids"]) <= 10 for window in windows)
    spans = [window.offsets[window.offsets[:, 0] >= 0] for window in windows]
    assert [len(span) for span in spans] == [5, 5]
    assert spans[0][0].tolist() == [0, 1] and spans[-1][-1].tolist() == [10, 11]
    assert spans[0][-2:].tolist() == spans[1][:2].tolist()


def test_question_and_special_tokens_are_no_answer(tokenizer):
    (window,) = make_features(tokenizer, ["xy"], ["ab"], max_length=32, stride=8)
    # [CLS] x ##y [SEP] a ##b [SEP]
    assert window.offsets[:, 0].tolist() == [-1, -1, -1, -1, 0, 1, -1]


def test_windows_belong_to_their_question(tokenizer):
    windows = make_features(tokenizer, ["x", "y"], [CONTEXT, "ab"], max_length=9, stride=2)
    examples = [window.example for window in windows]
    assert examples[0] == 0 and examples[-1] == 1 and examples.count(1) == 1 and examples.count(0) > 1


def test_a_question_without_room_is_refused(tokenizer):
    with pytest.raises(ValueError, match=r"no room.*max_length=10"):
        make_features(tokenizer, ["x" * 9], [CONTEXT], max_length=10, stride=2)


def test_best_span():
    """Of the context's tokens (1 to 4) the pair start 2, end 3: 5 + 4; the question's token 0 has more but is none."""
    offsets = [[-1, -1], [0, 2], [3, 5], [6, 8], [9, 11]]
    start, end = np.array([9.0, 1, 5, 2, 0]), np.array([9.0, 0, 1, 4, 3])
    answer = best_answer(CONTEXT, [feature(offsets)], [start], [end])
    assert (answer.text, answer.score) == ("cd ef", 9.0)


def test_an_end_before_its_start_and_long_spans_are_no_answer():
    offsets = [[0, 2], [3, 5], [6, 8], [9, 11]]
    start, end = np.array([4.0, 0, 0, 5]), np.array([6.0, 0, 0, 2])
    # start 3, end 0 (11) is backwards; start 0, end 0 (10) is the best
    assert best_answer(CONTEXT, [feature(offsets)], [start], [end]).text == "ab"
    start, end = np.array([9.0, 0, 0, 0]), np.array([-9.0, -9, -9, 9])
    assert best_answer(CONTEXT, [feature(offsets)], [start], [end], max_answer_length=4).text == CONTEXT
    assert best_answer(CONTEXT, [feature(offsets)], [start], [end], max_answer_length=3).text == "cd ef gh"


def test_best_of_all_windows():
    first, second = feature([[0, 2], [3, 5]]), feature([[6, 8], [9, 11]])
    starts, ends = [np.array([1.0, 0]), np.array([0, 2.0])], [np.array([0, 1.0]), np.array([0, 2.0])]
    answer = best_answer(CONTEXT, [first, second], starts, ends)
    assert (answer.text, answer.score) == ("gh", 4.0)


def test_no_possible_span_is_an_empty_answer():
    answer = best_answer(CONTEXT, [feature([[-1, -1]])], [np.array([1.0])], [np.array([1.0])])
    assert answer.text == ""
