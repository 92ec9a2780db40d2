import pytest
import torch
from conftest import TEXTS, write_tokenizer
from transformers import BatchEncoding, BertForQuestionAnswering

from hf_smoothquant import SmoothQuantConfig
from hf_smoothquant.calibration.data import builtin_corpus, calibration_data
from hf_smoothquant.calibration.runner import calibrate
from hf_smoothquant.selection import select_linears


@pytest.fixture
def model(tiny_bert):
    return BertForQuestionAnswering.from_pretrained(tiny_bert)


def batches_of(model, **arguments):
    data = calibration_data(SmoothQuantConfig(**arguments), model)
    return list(data), data


def ids(*shape):
    return torch.randint(5, 64, shape)


@pytest.mark.parametrize(
    ("dataset", "samples", "tokens"),
    [
        (["abc", "a b"], 2, 5 + 4),
        ([("who", "me"), ["a", "b"]], 2, 8 + 5),
        (tuple(["abc"]), 1, 5),
        ((text for text in ["abc", "d"]), 2, 5 + 3),
        ([ids(2, 7), ids(3, 4)], 5, 14 + 12),
        ([{"input_ids": ids(1, 5), "attention_mask": torch.tensor([[1, 1, 1, 0, 0]]), "labels": ids(1)}], 1, 3),
        ([BatchEncoding({"input_ids": ids(2, 5)})], 2, 10),
        (torch.utils.data.DataLoader(ids(6, 5), batch_size=4), 6, 30),
    ],
)
def test_kinds_of_datasets(model, dataset, samples, tokens):
    batches, data = batches_of(model, dataset=dataset)
    assert all(isinstance(batch["input_ids"], torch.Tensor) and "labels" not in batch for batch in batches)
    assert (data.num_samples, data.num_tokens) == (samples, tokens)


@pytest.mark.parametrize("dataset", [3, "some/name", {"a": 1}, [3], [["a", 1]], [{"text": "a"}], ["a", 3]])
def test_a_wrong_kind_says_what_is_accepted(model, dataset):
    with pytest.raises(TypeError, match="Accepted: None"):
        batches_of(model, dataset=dataset)


@pytest.mark.parametrize("dataset", [[], iter(()), ["", "  "], [("", "")]])
def test_empty_datasets(model, dataset):
    with pytest.raises(ValueError, match="empty"):
        batches_of(model, dataset=dataset)


def test_fewer_samples_than_asked_for_warns(model, transformers_warnings):
    batches_of(model, dataset=["a", "b"], num_samples=3)
    assert "Calibrating on 2 samples" in transformers_warnings.text


def test_num_samples_bounds_texts_and_batches(model):
    assert batches_of(model, dataset=["a"] * 9, num_samples=5)[1].num_samples == 5
    assert batches_of(model, dataset=[ids(4, 6)] * 9, num_samples=6)[1].num_samples == 6


def test_texts_are_sorted_cut_and_padded_per_batch(model):
    batches, _ = batches_of(model, dataset=["a " * 40, "b", "c " * 20, "d " * 500], batch_size=2, max_length=32)
    assert [tuple(batch["input_ids"].shape) for batch in batches] == [(2, 22), (2, 32)]
    assert batches[0]["attention_mask"].tolist() == [[1] * 3 + [0] * 19, [1] * 22]
    assert batches[0]["input_ids"][0, 3:].tolist() == [0] * 19


def test_length_stays_below_what_the_model_takes(model):
    (batch,), _ = batches_of(model, dataset=["a " * 900])
    assert batch["input_ids"].shape[1] == 128


def test_missing_tokenizer(model, tmp_path):
    model.name_or_path = str(tmp_path)
    with pytest.raises(ValueError, match=r"No tokenizer found.*tokenizer=AutoTokenizer"):
        batches_of(model, dataset=TEXTS)
    assert batches_of(model, dataset=[ids(2, 7)])[1].num_samples == 2  # tensors need none
    assert batches_of(model, dataset=TEXTS, tokenizer=write_tokenizer(tmp_path / "own"))[1].num_samples == len(TEXTS)
    assert batches_of(model, dataset=TEXTS, tokenizer=str(tmp_path / "own"))[1].num_samples == len(TEXTS)


def test_builtin_corpus_is_real_text_in_many_scripts():
    corpus = builtin_corpus()
    assert len(corpus) >= 256 and len(set(corpus)) == len(corpus)
    first = corpus[:32]
    assert 4 <= sum(isinstance(text, tuple) for text in first) <= 28
    assert any(not "".join(text).isascii() for text in first)
    assert all(part.strip() for text in corpus for part in ([text] if isinstance(text, str) else text))


def absmaxes(model, **arguments):
    config = SmoothQuantConfig(**arguments)
    observer = calibrate(model, select_linears(model, config).convert, calibration_data(config, model))
    return {name: group.absmax for group in observer.groups() for name in group.names}


@pytest.mark.parametrize("side", ["left", "right"])
def test_statistics_do_not_depend_on_batch_size_or_padding_side(model, tiny_bert, side):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_bert, padding_side=side)
    one, eight = (absmaxes(model, dataset=TEXTS, tokenizer=tokenizer, batch_size=size) for size in (1, 8))
    assert one.keys() == eight.keys() and len(one) == 12
    for name in one:
        torch.testing.assert_close(one[name], eight[name], rtol=1e-4, atol=1e-5)


def test_q_k_v_are_one_group(model):
    config = SmoothQuantConfig(dataset=TEXTS)
    observer = calibrate(model, select_linears(model, config).convert, calibration_data(config, model))
    names = [{name.rsplit(".", 1)[1] for name in group.names} for group in observer.groups()]
    assert names == [{"query", "key", "value"}, {"dense"}, {"dense"}, {"dense"}] * 2


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_it_was_found(model, fails):
    model.train()
    model.bert.encoder.layer[0].eval()
    before = [module.training for module in model.modules()]
    config_before = model.config.to_dict()
    dataset = [ids(1, 5)] + ([{"input_ids": torch.full((1, 5), 10**6)}] if fails else [])
    if fails:
        with pytest.raises(IndexError):
            absmaxes(model, dataset=dataset)
    else:
        absmaxes(model, dataset=dataset)
    assert [module.training for module in model.modules()] == before
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters()) and torch.is_grad_enabled()
    assert model.config.to_dict() == config_before
