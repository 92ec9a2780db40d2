"""Text encoders by architecture, with the usual heads."""

import pytest
from architectures import (
    FEW,
    IDS,
    TEXT,
    TIED,
    Architecture,
    check_compiled,
    check_quantized,
    compile_cases,
    int8_linears,
    names,
    text_batch,
)
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForQuestionAnswering,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    ElectraConfig,
    ElectraForTokenClassification,
    ModernBertConfig,
    ModernBertForMaskedLM,
    MPNetConfig,
    MPNetForQuestionAnswering,
    RobertaConfig,
    RobertaForTokenClassification,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)

LAYER = "attention.self.query attention.self.key attention.self.value attention.output.dense"
LAYER += " intermediate.dense output.dense"


def bert_like(prefix: str, value: str = "attention.self.value", output: str = "attention.output.dense") -> dict:
    """Post-norm: only the values' Linear can take factors."""
    return {f"{prefix}.encoder.layer.*.{output}": f"{prefix}.encoder.layer.*.{value}"}


def choices_batch(seed):
    return {name: tensor.reshape(2, 2, -1) for name, tensor in text_batch(seed).items()}


SHARED = "albert.encoder.albert_layer_groups.*.albert_layers.*"
ENCODERS = {
    "BERT, question answering": Architecture(
        BertForQuestionAnswering,
        BertConfig(**TEXT),
        quantized=names("bert.encoder.layer.*", LAYER),
        folded=bert_like("bert"),
        kept={"qa_outputs": FEW},
        min_sqnr_db=(20, 25),
    ),
    "BERT, masked LM": Architecture(
        BertForMaskedLM,
        BertConfig(**TEXT),
        quantized=names("bert.encoder.layer.*", LAYER) | {"cls.predictions.transform.dense"},
        folded=bert_like("bert"),
        kept={"cls.predictions.decoder": TIED},
        min_sqnr_db=(24, 32),
    ),
    "BERT, multiple choice": Architecture(
        BertForMultipleChoice,
        BertConfig(**TEXT),
        quantized=names("bert.encoder.layer.*", LAYER) | {"bert.pooler.dense"},
        folded=bert_like("bert"),
        kept={"classifier": FEW},
        min_sqnr_db=(14, 23),
        batch=choices_batch,
    ),
    "DistilBERT, sequence classification": Architecture(
        DistilBertForSequenceClassification,
        DistilBertConfig(
            vocab_size=64,
            max_position_embeddings=130,
            initializer_range=0.2,
            dim=64,
            hidden_dim=128,
            n_layers=2,
            n_heads=4,
        ),
        quantized=names(
            "distilbert.transformer.layer.*",
            "attention.q_lin attention.k_lin attention.v_lin attention.out_lin ffn.lin1 ffn.lin2",
        )
        | {"pre_classifier"},
        folded={"distilbert.transformer.layer.*.attention.out_lin": "distilbert.transformer.layer.*.attention.v_lin"},
        kept={"classifier": FEW},
        min_sqnr_db=(19, 21),
    ),
    "RoBERTa, token classification": Architecture(
        RobertaForTokenClassification,
        RobertaConfig(**TEXT, **IDS),
        quantized=names("roberta.encoder.layer.*", LAYER),
        folded=bert_like("roberta"),
        kept={"classifier": FEW},
        min_sqnr_db=(21, 25),
    ),
    "XLM-R, sequence classification": Architecture(
        XLMRobertaForSequenceClassification,
        XLMRobertaConfig(**TEXT, **IDS),
        quantized=names("roberta.encoder.layer.*", LAYER) | {"classifier.dense"},
        folded=bert_like("roberta"),
        kept={"classifier.out_proj": FEW},
        min_sqnr_db=(14, 17),
    ),
    "ALBERT, masked LM": Architecture(
        AlbertForMaskedLM,
        AlbertConfig(**TEXT, embedding_size=32),
        quantized=names(SHARED, "attention.query attention.key attention.value attention.dense ffn ffn_output")
        | {"albert.encoder.embedding_hidden_mapping_in", "predictions.dense"},
        folded={
            "albert.encoder.embedding_hidden_mapping_in": "albert.embeddings.LayerNorm",
            f"{SHARED}.attention.dense": f"{SHARED}.attention.value",
        },
        kept={"predictions.decoder": TIED},
        min_sqnr_db=(23, 26),
    ),
    "ELECTRA, token classification": Architecture(
        ElectraForTokenClassification,
        ElectraConfig(**TEXT, embedding_size=32),
        quantized=names("electra.encoder.layer.*", LAYER) | {"electra.embeddings_project"},
        folded=bert_like("electra") | {"electra.embeddings_project": "electra.embeddings.LayerNorm"},
        kept={"classifier": FEW},
        min_sqnr_db=(22, 25),
    ),
    "MPNet, question answering": Architecture(
        MPNetForQuestionAnswering,
        MPNetConfig(**TEXT, **IDS),
        quantized=names(
            "mpnet.encoder.layer.*",
            "attention.attn.q attention.attn.k attention.attn.v attention.attn.o intermediate.dense output.dense",
        ),
        folded=bert_like("mpnet", "attention.attn.v", "attention.attn.o"),
        kept={"qa_outputs": FEW},
        min_sqnr_db=(17, 23),
    ),
    "DeBERTa-v2, sequence classification": Architecture(
        DebertaV2ForSequenceClassification,
        DebertaV2Config(
            **TEXT,
            relative_attention=True,
            pos_att_type=["p2c", "c2p"],
            share_att_key=True,
            position_buckets=16,
            norm_rel_ebd="layer_norm",
            position_biased_input=False,
        ),
        quantized=names(
            "deberta.encoder.layer.*",
            LAYER.replace("query", "query_proj").replace("key", "key_proj").replace("value", "value_proj"),
        )
        | {"pooler.dense"},
        folded=bert_like("deberta", "attention.self.value_proj"),
        kept={"classifier": FEW},
        min_sqnr_db=(15, 25),
    ),
    "ModernBERT, masked LM": Architecture(
        ModernBertForMaskedLM,
        ModernBertConfig(
            **TEXT, **IDS, cls_token_id=2, sep_token_id=3, global_attn_every_n_layers=2, local_attention=8
        ),
        quantized=names("model.layers.*", "attn.Wqkv attn.Wo mlp.Wi mlp.Wo") | {"head.dense"},
        # Not the first layer's Wqkv: there the embeddings' norm comes before, and the residual reads it, too.
        folded={
            "model.layers.*.attn.Wqkv": "model.layers.*.attn_norm",
            "model.layers.*.mlp.Wi": "model.layers.*.mlp_norm",
        },
        kept={"decoder": TIED},
        min_sqnr_db=(17, 27),
    ),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_quantize_and_reload(name, tmp_path):
    check_quantized(ENCODERS[name], tmp_path)


def test_albert_layers_stay_shared(tmp_path):
    """Two layers, one set of weights: quantized once and called in each layer."""
    architecture = ENCODERS["ALBERT, masked LM"]
    architecture.build().save_pretrained(tmp_path)
    model = architecture.quantize(tmp_path)
    assert model.config.num_hidden_layers == 2 and len(int8_linears(model)) == 8
    calls = []
    model.albert.encoder.albert_layer_groups[0].albert_layers[0].ffn.register_forward_hook(lambda *_: calls.append(1))
    architecture.outputs(model)
    assert len(calls) == 2


def test_compile_with_shared_layers(tmp_path):
    check_compiled(ENCODERS["ALBERT, masked LM"], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "activation"), compile_cases(ENCODERS))
def test_compile_all(name, activation, tmp_path):
    check_compiled(ENCODERS[name], tmp_path, activation=activation)
