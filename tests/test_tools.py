"""Other libraries around a quantized model: Trainer, sentence-transformers, PEFT, accelerate."""

from itertools import pairwise

import pytest
import torch
from architectures import int8_linears, text_batch
from conftest import SMALL, TEXTS, sqnr_db, write_tokenizer
from test_encoders import ENCODERS
from transformers import BertConfig, BertForSequenceClassification, BertModel, Trainer, TrainingArguments

from hf_smoothquant import SmoothQuantConfig

CLASSIFIER = ENCODERS["DistilBERT, sequence classification"]
ROWS = [
    {"input_ids": ids, "attention_mask": mask, "labels": label % 2}
    for label, (ids, mask) in enumerate(zip(*text_batch(3).values(), strict=True))
]


@pytest.fixture
def trainer(tmp_path):
    CLASSIFIER.build().save_pretrained(tmp_path)
    model = CLASSIFIER.quantize(tmp_path)
    arguments = TrainingArguments(tmp_path / "out", report_to=[], use_cpu=True, max_steps=1, disable_tqdm=True)
    return Trainer(model, arguments, train_dataset=ROWS, eval_dataset=ROWS)


def test_trainer_predicts_and_evaluates(trainer):
    predictions = trainer.predict(ROWS).predictions
    with torch.no_grad():
        logits = trainer.model(**text_batch(3)).logits
    assert torch.equal(torch.from_numpy(predictions), logits)
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1, 0, 1]))
    assert trainer.evaluate()["eval_loss"] == pytest.approx(loss.item(), rel=1e-5)


def test_trainer_does_not_train(trainer):
    with pytest.raises(RuntimeError, match="Int8 weights can't be trained"):
        trainer.train()


def test_accelerate(trainer):
    """`prepare` leaves the outputs as they are."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    with torch.no_grad():
        logits = trainer.model(**text_batch(3)).logits
        assert torch.equal(accelerator.prepare(trainer.model)(**text_batch(3)).logits, logits)


@pytest.fixture
def folder(tmp_path):
    config = BertConfig(vocab_size=64, max_position_embeddings=130, initializer_range=0.2, num_labels=1, **SMALL)
    BertModel(config).save_pretrained(tmp_path / "encoder")
    BertForSequenceClassification(config).save_pretrained(tmp_path / "cross")
    write_tokenizer(tmp_path / "encoder")
    write_tokenizer(tmp_path / "cross")
    return tmp_path


INT8 = {"model_kwargs": {"quantization_config": SmoothQuantConfig(num_samples=16)}, "device": "cpu"}


def test_sentence_transformer(folder):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    floats = sentence_transformers.SentenceTransformer(str(folder / "encoder"), device="cpu")
    model = sentence_transformers.SentenceTransformer(str(folder / "encoder"), **INT8)
    embeddings = model.encode(TEXTS, convert_to_tensor=True)
    assert len(int8_linears(model)) == 13
    assert torch.cosine_similarity(embeddings, floats.encode(TEXTS, convert_to_tensor=True)).min() > 0.995
    model.save_pretrained(str(folder / "int8"))
    again = sentence_transformers.SentenceTransformer(str(folder / "int8"), device="cpu")
    assert torch.equal(again.encode(TEXTS, convert_to_tensor=True), embeddings)


@pytest.mark.slow
def test_sentence_transformer_in_several_processes(folder):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = sentence_transformers.SentenceTransformer(str(folder / "encoder"), **INT8)
    pool = model.start_multi_process_pool(["cpu", "cpu"])
    try:
        embeddings = torch.tensor(model.encode(TEXTS, pool=pool, chunk_size=4))
    finally:
        model.stop_multi_process_pool(pool)
    assert sqnr_db(model.encode(TEXTS, convert_to_tensor=True), embeddings) > 40


def test_cross_encoder(folder):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    pairs = list(pairwise(TEXTS))
    floats = sentence_transformers.CrossEncoder(str(folder / "cross"), device="cpu").predict(pairs)
    model = sentence_transformers.CrossEncoder(str(folder / "cross"), **INT8)
    scores = model.predict(pairs)
    assert abs(scores - floats).max() < 0.05
    model.save_pretrained(str(folder / "int8"))
    assert (sentence_transformers.CrossEncoder(str(folder / "int8"), device="cpu").predict(pairs) == scores).all()


@pytest.mark.filterwarnings("ignore:TorchaoLoraLinear was instantiated")
def test_adapter_of_the_float_model(tmp_path):
    """Right with `fold=False`, where every Linear has the inputs that the adapter was trained on; not merged."""
    peft = pytest.importorskip("peft")
    architecture = ENCODERS["BERT, question answering"]
    architecture.build().save_pretrained(tmp_path)
    lora = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["query", "value"], init_lora_weights=False)
    floats = peft.get_peft_model(architecture.build(), lora).eval()
    floats.save_pretrained(tmp_path / "adapter")
    reference = architecture.outputs(floats)
    base = architecture.quantize(tmp_path, activation="dynamic", fold=False)
    without = architecture.outputs(base)
    model = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    outputs = architecture.outputs(model)
    assert min(map(sqnr_db, reference, outputs)) > max(20, *map(sqnr_db, reference, without))
    for merge in (model.merge_adapter, model.merge_and_unload):
        with pytest.raises(ValueError, match="re-quantize the base layer"):
            merge()
    assert all(torch.equal(one, other) for one, other in zip(outputs, architecture.outputs(model), strict=True))
