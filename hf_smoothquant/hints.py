"""What a user should hear once: int8 Linears that run eager are slower than float ones."""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging

logger = logging.get_logger(__name__)

EAGER = (
    "The int8 Linears run eager, which is slower than float: each quantizes its input in several passes. Make them "
    "fused kernels: model = hf_smoothquant.compile(model), or hf_smoothquant.export(model, ...) to deploy."
)
_due = True


def eager_is_slow() -> None:
    """Warns, the first time in a process."""
    global _due
    if _due:
        _due = False
        logger.warning(EAGER)


@contextmanager
def eager_on_purpose() -> Iterator[None]:
    """Inside, nothing is said: the library itself asks for the eager model's outputs."""
    global _due
    due, _due = _due, False
    try:
        yield
    finally:
        _due = due
