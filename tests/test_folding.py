import pytest
import torch
from conftest import SMALL, TEXTS, sqnr_db
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForQuestionAnswering,
    BertModel,
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    MixtralConfig,
    MixtralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    T5Config,
    T5EncoderModel,
    ViTConfig,
    ViTModel,
)

from hf_smoothquant import SmoothQuantConfig, quantization_report
from hf_smoothquant.conversion import quantize_model
from hf_smoothquant.smoothing.folding import find_producers, fold

GQA = {**SMALL, "num_key_value_heads": 2, "vocab_size": 64}
IDS = torch.arange(5, 25).reshape(2, 10)


def factors_of(groups):
    return [torch.rand(next(iter(group.values())).in_features) * 3 + 0.2 for group in groups]


def llama_groups(model, prefix="model."):
    return [
        {name: model.get_submodule(name) for name in (f"{prefix}layers.{i}.{part}" for part in parts)}
        for i in range(2)
        for parts in (
            ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
            ["self_attn.o_proj"],
            ["mlp.gate_proj", "mlp.up_proj"],
            ["mlp.down_proj"],
        )
    ]


def test_a_folded_and_smoothed_float_model_equals_the_original():
    model = LlamaForCausalLM(LlamaConfig(**GQA)).eval()
    groups = llama_groups(model)
    factors = factors_of(groups)
    with torch.no_grad():
        reference = model(IDS).logits
        norm = model.model.layers[1].post_attention_layernorm.weight.clone()
        folded = fold(model, groups, factors, {"input_ids": IDS})
        assert folded == {
            0: "model.layers.0.input_layernorm",
            2: "model.layers.0.post_attention_layernorm",
            4: "model.layers.1.input_layernorm",
            6: "model.layers.1.post_attention_layernorm",
        }
        torch.testing.assert_close(model.model.layers[1].post_attention_layernorm.weight, norm / factors[6])
        for index in folded:
            for linear in groups[index].values():
                linear.weight *= factors[index]
        torch.testing.assert_close(model(IDS).logits, reference, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("model_class", "config", "per_layer"),
    [
        (LlamaForCausalLM, LlamaConfig(**GQA), 2),
        (
            OPTForCausalLM,
            OPTConfig(vocab_size=64, word_embed_proj_dim=64, ffn_dim=128, **SMALL),
            2,
        ),
        (
            T5EncoderModel,
            T5Config(vocab_size=64, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4),
            2,
        ),
        (MixtralForCausalLM, MixtralConfig(**GQA, num_local_experts=4), 1),  # not before a router
        (GemmaForCausalLM, GemmaConfig(**GQA, head_dim=16), 0),  # multiplies by 1 + weight
    ],
)
def test_which_groups_fold(save_tiny, model_class, config, per_layer, dtype):
    folder = save_tiny(model_class(config))
    arguments = {"dtype": dtype, "quantization_config": SmoothQuantConfig(dataset=TEXTS)}
    model = model_class.from_pretrained(folder, **arguments)
    groups = quantization_report(model).groups
    assert sum(group.folded_into is not None for group in groups) == 2 * per_layer
    for group in groups:
        for name in group.names:
            assert (model.get_submodule(name).weight.act_pre_scale is None) == (group.folded_into is not None)
    unfolded = SmoothQuantConfig(dataset=TEXTS, fold=False)
    other = model_class.from_pretrained(folder, dtype=dtype, quantization_config=unfolded)
    assert not any(group.folded_into for group in quantization_report(other).groups)
    with torch.no_grad():
        one, two = model(IDS)[0], other(IDS)[0]
    # The same int8 values but for roundings on the other side of a step.
    assert sqnr_db(two, one) > (25 if dtype == torch.float32 else 12)


def test_post_norm_models_keep_the_multiplication(tiny_bert):
    model = AutoModel.from_pretrained(tiny_bert, quantization_config=SmoothQuantConfig(dataset=TEXTS))
    assert not any(group.folded_into for group in quantization_report(model).groups)


def test_vision_model():
    model = ViTModel(ViTConfig(**SMALL, image_size=16, patch_size=8)).eval()
    pixels = torch.randn(4, 3, 16, 16)
    with torch.no_grad():
        reference = model(pixels).last_hidden_state
        _, report = quantize_model(model, SmoothQuantConfig(dataset=[{"pixel_values": pixels}], num_samples=4))
        assert sqnr_db(reference, model(pixels).last_hidden_state) > 20
    assert [group.folded_into is not None for group in report.groups] == [True, False, True, False] * 2 + [False]


def test_a_norm_that_is_read_elsewhere_is_left_alone(tiny_config):
    """A second branch reads the norm's output: the residual in BERT, here an addition behind a pre-norm Linear."""

    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.norm2 = nn.LayerNorm(64), nn.LayerNorm(64)
            self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            x = self.norm(x)
            x = self.a(x) + x
            return self.b(self.norm2(x))

    class Model(BertModel):
        def __init__(self, config):
            super().__init__(config)
            self.encoder = nn.Identity()
            self.branch = Branch()

        def forward(self, input_ids, **kwargs):
            return {"out": self.branch(self.embeddings(input_ids))}

    model = Model(tiny_config).eval()
    groups = [{"branch.a": model.branch.a}, {"branch.b": model.branch.b}]
    assert find_producers(model, groups, {"input_ids": IDS}) == {1: "branch.norm2"}


def test_a_wrong_fold_is_taken_back_and_a_right_one_kept(tiny_config):
    class Shifted(nn.Module):
        """Looks like a norm with one weight, and doesn't commute with a scale of it."""

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(64))

        def forward(self, x):
            return x * (1 + self.weight)

    class Model(BertModel):
        def __init__(self, config):
            super().__init__(config)
            self.wrong, self.right = Shifted(), nn.LayerNorm(64)
            self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, input_ids, **kwargs):
            return {"out": self.b(self.right(self.a(self.wrong(self.embeddings(input_ids)))))}

    model = Model(tiny_config).eval()
    groups = [{"a": model.a}, {"b": model.b}]
    with torch.no_grad():
        reference = model(IDS)["out"]
        factors = factors_of(groups)
        assert fold(model, groups, factors, {"input_ids": IDS}) == {1: "right"}
        assert torch.equal(model.wrong.weight, torch.ones(64))
        model.b.weight *= factors[1]
        torch.testing.assert_close(model(IDS)["out"], reference, rtol=1e-4, atol=1e-5)


def test_outputs_as_tuples():
    model = LlamaModel(LlamaConfig(**GQA, return_dict=False)).eval()
    groups = llama_groups(model, prefix="")
    assert len(fold(model, groups, factors_of(groups), {"input_ids": IDS})) == 4


def test_a_norm_whose_output_the_base_model_returns_is_left_alone(tiny_bert):
    """The last norm of BERT feeds the head alone, and is what `model.bert(...)` returns."""
    config = SmoothQuantConfig(dataset=TEXTS, min_features=1)
    model = AutoModelForQuestionAnswering.from_pretrained(tiny_bert, quantization_config=config)
    assert not any(group.folded_into for group in quantization_report(model).groups)
    assert model.qa_outputs.weight.act_pre_scale is not None
