"""Types of arguments that the command lines share."""

import argparse


def whole(text: str) -> int:
    """A whole number from 1.

    Raises:
        `argparse.ArgumentTypeError`: it is smaller; `ValueError`: it is no whole number. argparse says both.
    """
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value
