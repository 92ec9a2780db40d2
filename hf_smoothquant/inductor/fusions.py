"""The int8 fusion patterns of torchao, registered without the side effects."""

from torch._inductor import config as inductor_config


def register_fusions() -> None:
    """Registers the patterns that turn an `Int8Tensor` product into one `onednn.qlinear` call; again costs nothing.

    They live in torchao (0.18) and are registered by importing a module, which also installs a global pre-grad pass
    (for models exported by pt2e; it does nothing for ours). That setting is put back: other models of this process
    keep theirs.
    """
    with inductor_config.patch(pre_grad_custom_pass=inductor_config.pre_grad_custom_pass):
        import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer  # noqa: F401 (for its side effect)
