"""Models by shape: configs of well-known encoders with random weights, for when only the time matters."""

from collections.abc import Callable

import torch
from torch import nn
from transformers import AutoModel, BertConfig, DistilBertConfig, PreTrainedConfig, PreTrainedModel, XLMRobertaConfig

PRESETS: dict[str, Callable[[], PreTrainedConfig]] = {
    "bert-large": lambda: BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    ),
    "bert-base": BertConfig,
    "distilbert": DistilBertConfig,
    "xlm-r-base": lambda: XLMRobertaConfig(
        vocab_size=250_002, max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5
    ),
    "minilm": lambda: BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536),
    "tiny": lambda: BertConfig(
        vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128
    ),
}
"""Configs by name. `"tiny"` is for trying the command out."""

# About what trained BERTs have. The common initialization (0.02, norms of ones) has no outlier channels, on which the
# error of int8 depends most.
LINEAR_STD = 0.04
EMBEDDING_STD = 0.05
NORM_RANGE = (0.6, 1.0)
OUTLIER_EVERY = 128  # channels
OUTLIER_FACTOR = 6.0


def random_model(preset: str, seed: int = 0) -> PreTrainedModel:
    """An encoder of the shape `preset` with random float32 weights of realistic scales, in eval mode.

    One channel in 128 of each norm is 6 times as large as the others: such outliers are what smoothing is for.

    Args:
        preset (`str`): a key of `PRESETS`.
        seed (`int`, *optional*, defaults to 0): the same seed gives the same weights.

    Raises:
        `ValueError`: there is no such preset.
    """
    if preset not in PRESETS:
        raise ValueError(f"There is no preset {preset!r}. Presets: {', '.join(PRESETS)}.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModel.from_config(PRESETS[preset]()).eval()
        with torch.no_grad():
            for module in model.modules():
                _randomize(module)
    return model


def _randomize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        module.weight.normal_(std=LINEAR_STD)
        module.bias.normal_(std=LINEAR_STD)
    elif isinstance(module, nn.Embedding):
        module.weight.normal_(std=EMBEDDING_STD)
    elif isinstance(module, nn.LayerNorm):
        module.weight.uniform_(*NORM_RANGE)
        outliers = torch.randperm(len(module.weight))[: max(1, len(module.weight) // OUTLIER_EVERY)]
        module.weight[outliers] *= OUTLIER_FACTOR
        module.bias.normal_(std=LINEAR_STD)
