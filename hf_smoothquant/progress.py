"""Progress bars, as loud as transformers' own settings allow."""

from collections.abc import Iterable

from transformers.utils import logging


def progress(iterable: Iterable, description: str, unit: str, total: int | None = None, hidden: bool = False):
    """`iterable` with a bar that shows the time left, where the number of steps is known.

    It is quiet after `transformers.logging.disable_progress_bar()` or with a verbosity of errors only
    (`TRANSFORMERS_VERBOSITY=error`), and goes away at the end.
    """
    hidden = hidden or logging.get_verbosity() >= logging.ERROR
    return logging.tqdm(iterable, total=total, desc=description, unit=unit, leave=False, disable=hidden)
