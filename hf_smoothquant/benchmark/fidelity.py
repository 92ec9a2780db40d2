"""How far a variant's outputs are from float32's."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Fidelity:
    """Distance of last hidden states from the reference.

    Attributes:
        sqnr_db (`float`): signal-to-quantization-noise ratio over all values of all requests.
        cosine (`float`): mean over tokens of the cosine to the reference.
    """

    sqnr_db: float
    cosine: float


def compare(reference: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Fidelity:
    """The distance of `outputs` from `reference`: arrays `[batch, length, hidden]`, one for each request.

    Raises:
        `ValueError`: the shapes differ.
    """
    signal = noise = 0.0
    cosines = []
    for expected, output in zip(reference, outputs, strict=True):
        if expected.shape != output.shape:
            raise ValueError(f"Expected outputs of shape {expected.shape}, got {output.shape}.")
        expected, output = expected.astype(np.float64), output.astype(np.float64)
        signal += np.square(expected).sum()
        noise += np.square(expected - output).sum()
        norms = np.linalg.norm(expected, axis=-1) * np.linalg.norm(output, axis=-1)
        cosines.append(((expected * output).sum(-1) / np.maximum(norms, np.finfo(np.float64).tiny)).ravel())
    sqnr_db = 10 * np.log10(signal / noise) if noise else np.inf
    return Fidelity(float(sqnr_db), float(np.concatenate(cosines).mean()))
