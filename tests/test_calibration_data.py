from contextlib import nullcontext

import datasets
import pytest
import torch
from conftest import TEXTS, write_tokenizer
from transformers import BatchEncoding, BertForQuestionAnswering

from hf_smoothquant import SmoothQuantConfig
from hf_smoothquant.calibration.data import calibration_data
from hf_smoothquant.calibration.runner import calibrate
from hf_smoothquant.calibration.sources import builtin_corpus
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
        ([{"input_ids": ids(2, 5), "attention_mask": torch.ones(2, 1, 5, 5).tril().bool()}], 2, 10),
        ([{"input_ids": ids(2, 5), "attention_mask": torch.ones(2, 5, 5).long()}], 2, 10),
        ([BatchEncoding({"input_ids": ids(2, 5)})], 2, 10),
        (torch.utils.data.DataLoader(ids(6, 5), batch_size=4), 6, 30),
        (torch.utils.data.DataLoader(torch.utils.data.TensorDataset(ids(3, 5), torch.ones(3, 5).long())), 3, 15),
        ([(ids(1, 5), torch.ones(1, 5).long(), torch.tensor([1]))], 1, 5),  # the last are labels
        ([(ids(2, 5), torch.tensor([0, 1]))], 2, 10),
        (ids(3, 5), 3, 15),
        ([{"text": "a", "label": 0}, {"text": "b c", "label": 1}], 2, 3 + 4),
        ([{"question": "a", "context": "b", "id": "x"}], 1, 5),
        ([{"foo": "a", "n": 3}], 1, 3),
        ([{"input_ids": [5, 6, 7], "label": 3}, {"input_ids": [5], "label": 0}], 2, 4),
        ([{"input_ids": torch.tensor([5, 6]), "attention_mask": torch.tensor([1, 0])}], 1, 1),
        (datasets.Dataset.from_dict({"premise": ["a", "b"], "hypothesis": ["c", "d e"], "idx": [0, 1]}), 2, 5 + 6),
        (datasets.Dataset.from_dict({"text": ["a"]}).to_iterable_dataset(), 1, 3),
    ],
)
def test_kinds_of_datasets(model, dataset, samples, tokens):
    batches, data = batches_of(model, dataset=dataset)
    assert all(isinstance(batch["input_ids"], torch.Tensor) and "labels" not in batch for batch in batches)
    assert (data.num_samples, data.num_tokens) == (samples, tokens)


@pytest.mark.parametrize("dataset", [3, b"a", {"a": 1}, [3], [["a", 1]], [[]], ["a", 3]])
def test_a_wrong_kind_says_what_is_accepted(model, dataset):
    with pytest.raises(TypeError, match="Accepted: None"):
        batches_of(model, dataset=dataset)


@pytest.mark.parametrize("kind", [datasets.DatasetDict, datasets.IterableDatasetDict])
def test_a_dict_of_splits_says_which_there_are(model, kind):
    table = datasets.Dataset.from_dict({"text": ["a"]})
    splits = kind({"fit": table, "test": table})
    with pytest.raises(TypeError, match=r"pass one of its splits \('fit', 'test'\), e\.g\. dataset\['fit'\]"):
        batches_of(model, dataset=splits)


def test_embeddings_count_as_their_tokens(model):
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    batch = {"inputs_embeds": torch.randn(2, 3, 64), "attention_mask": mask}
    assert batches_of(model, dataset=[batch])[1].num_tokens == 4


def test_no_room_for_text(model):
    for length, dataset in ((1, ["a"]), (2, ["a"]), (3, ["a", ("a", "b")])):
        with pytest.raises(ValueError, match=r"Cut to \d tokens.*Set SmoothQuantConfig\(max_length=...\) to more than"):
            batches_of(model, dataset=dataset, max_length=length)
    assert batches_of(model, dataset=["a b"], max_length=3)[1].num_tokens == 3


@pytest.mark.parametrize("dataset", [[], iter(()), ["", "  "], [("", "")]])
def test_empty_datasets(model, dataset):
    with pytest.raises(ValueError, match="empty"):
        batches_of(model, dataset=dataset)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "json", "jsonl", "parquet", "txt"])
def test_local_files(model, tmp_path, suffix):
    table = datasets.Dataset.from_dict({"sentence1": ["a", "b c"], "sentence2": ["d", "e"], "label": [0, 1]})
    file = tmp_path / f"data.{suffix}"
    if suffix == "txt":
        file.write_text("a b\nc d\n")
    elif suffix == "parquet":
        table.to_parquet(file)
    elif suffix in ("csv", "tsv"):
        table.to_csv(file, sep="\t" if suffix == "tsv" else ",", index=False)
    else:
        table.to_json(file)
    _, data = batches_of(model, dataset=str(file))
    assert data.describe() == {"dataset": file.name, "num_samples": 2, "num_tokens": 8 if suffix == "txt" else 11}


def test_local_folders(model, tmp_path):
    table = datasets.Dataset.from_dict({"text": ["a", "b c"]})
    (tmp_path / "files").mkdir()
    table.to_csv(tmp_path / "files" / "train.csv", index=False)
    datasets.DatasetDict({"train": table, "test": table.select([0])}).save_to_disk(tmp_path / "saved")
    assert batches_of(model, dataset=str(tmp_path / "files"))[1].num_tokens == 7
    assert batches_of(model, dataset=tmp_path / "saved")[1].num_tokens == 7
    assert batches_of(model, dataset=tmp_path / "saved", dataset_kwargs={"split": "test"})[1].num_samples == 1


def test_what_cannot_be_loaded(model, tmp_path):
    with pytest.raises(ValueError, match=r"'no/such' can't be loaded.*dataset_kwargs"):
        batches_of(model, dataset="no/such")
    (tmp_path / "data.doc").write_text("a")
    with pytest.raises(ValueError, match=r"files that end in '\.doc'"):
        batches_of(model, dataset=str(tmp_path / "data.doc"))
    with pytest.raises(ValueError, match="give them with a hub id"):
        batches_of(model, dataset=["a"], dataset_kwargs={"split": "train"})


def test_text_columns(model):
    rows = [{"a": "x", "b": "y y", "c": "z z z", "n": 1}]
    assert batches_of(model, dataset=rows, text_columns=["b"])[1].num_tokens == 4
    assert batches_of(model, dataset=rows, text_columns=["c", "b"])[1].num_tokens == 8
    with pytest.raises(ValueError, match=r"text columns: a, b, c\. Name one or two"):
        batches_of(model, dataset=rows)
    with pytest.raises(ValueError, match="missing: nope"):
        batches_of(model, dataset=rows, text_columns=["nope"])


def test_datasets_are_shuffled_by_the_seed(model):
    table = datasets.Dataset.from_dict({"text": ["a " * n for n in range(1, 60)]})

    def tokens(seed):
        return batches_of(model, dataset=table, num_samples=5, seed=seed)[1].num_tokens

    assert tokens(0) == tokens(0) and len({tokens(seed) for seed in range(4)}) > 1


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


@pytest.mark.parametrize("error", [None, IndexError, KeyboardInterrupt])
def test_the_model_is_left_as_it_was_found(model, error):
    def batches():
        yield ids(1, 5)
        if error is KeyboardInterrupt:
            raise KeyboardInterrupt
        if error is IndexError:
            yield {"input_ids": torch.full((1, 5), 10**6)}

    model.train()
    model.bert.encoder.layer[0].eval()
    before = [module.training for module in model.modules()]
    config_before = model.config.to_dict()
    weights_before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(error) if error else nullcontext():
        absmaxes(model, dataset=batches())
    assert [module.training for module in model.modules()] == before
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters()) and torch.is_grad_enabled()
    assert model.config.to_dict() == config_before
    assert all(torch.equal(value, weights_before[name]) for name, value in model.state_dict().items())


def test_nothing_but_padding(model):
    with pytest.raises(ValueError, match="nothing but padding"):
        absmaxes(model, dataset=[{"input_ids": ids(2, 5), "attention_mask": torch.zeros(2, 5).long()}])
