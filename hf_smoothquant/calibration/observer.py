"""What each Linear sees during calibration: per-channel maxima, and which Linears read the same tensor."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

SAMPLE_ROWS = 128


class RowSample:
    """A uniform sample of up to `SAMPLE_ROWS` of all rows it is shown, by random keys: their number needn't be known.

    Attributes:
        rows (`torch.Tensor`): `[R, K]`, of the input's dtype.
    """

    def __init__(self, seed: int = 0):
        self._generator = torch.Generator().manual_seed(seed)
        self._keys = torch.empty(0)
        self.rows = torch.empty(0)

    def add(self, rows: torch.Tensor) -> None:
        """Takes `rows`, `[n, K]`, into account."""
        keys = torch.rand(len(rows), generator=self._generator)
        kept = _largest(keys)  # first among the new ones, so that only few rows are copied
        self._merge_in(keys[kept], rows[kept.to(rows.device)])

    def __getstate__(self) -> dict:
        return {"_keys": self._keys, "rows": self.rows}  # between processes: a generator can't be pickled

    @classmethod
    def merge(cls, samples: Sequence["RowSample"]) -> "RowSample":
        """The sample of all rows that `samples`, drawn with different seeds, were shown."""
        merged = cls()
        for sample in samples:
            merged._merge_in(sample._keys, sample.rows)
        return merged

    def _merge_in(self, keys: torch.Tensor, rows: torch.Tensor) -> None:
        if len(self._keys) and len(keys):
            keys, rows = torch.cat([self._keys, keys]), torch.cat([self.rows, rows])
            kept = _largest(keys)
            keys, rows = keys[kept], rows[kept.to(rows.device)]
        if len(keys):
            self._keys, self.rows = keys, rows


def _largest(keys: torch.Tensor) -> torch.Tensor:
    return keys.topk(min(SAMPLE_ROWS, len(keys))).indices


@dataclass
class LinearStatistics:
    """Running statistics of one Linear's input: O(features) memory, whatever the amount of data.

    Attributes:
        minimum, maximum (`torch.Tensor`): `[K]`, float32; smallest and largest value of each channel over all real
            tokens.
        ndim (`int`): number of dimensions of the input.
        inputs (`int`): running hash of the identities of the inputs; equal for Linears that always read the same
            tensors.
        sample (`RowSample`): rows of the inputs that this Linear was the first to read; of one input at least.
    """

    minimum: torch.Tensor
    maximum: torch.Tensor
    ndim: int
    sample: RowSample
    inputs: int = 0


@dataclass
class Group:
    """Linears that share one smoothing factor and one activation scale, since they read the same input (q/k/v).

    Attributes:
        names (`list[str]`): full names of the Linears.
        minimum, maximum (`torch.Tensor`): `[K]`, float32; smallest and largest value of each channel of their input.
        ndim (`int`): number of dimensions of that input.
        rows (`torch.Tensor`): `[R, K]`; a uniform sample of that input, padding excluded; up to 128 rows.
    """

    names: list[str]
    minimum: torch.Tensor
    maximum: torch.Tensor
    ndim: int
    rows: torch.Tensor

    @property
    def absmax(self) -> torch.Tensor:
        """`[K]`, float32; largest magnitude of each channel."""
        return torch.maximum(self.maximum, -self.minimum)


class Observer:
    """Collects `LinearStatistics` through forward hooks; see `observe`.

    Attributes:
        statistics (`dict[str, LinearStatistics]`): of each Linear that was reached, by full name.
        first_batch (`Mapping`): up to two samples of the first batch, to try things on.
    """

    def __init__(self, linears: Mapping[str, nn.Linear], seed: int = 0):
        self._linears = linears
        self._seed = seed
        self.statistics: dict[str, LinearStatistics] = {}
        self.first_batch: dict[str, torch.Tensor] = {}
        self._seen = WeakTensorKeyDictionary()
        self._num_seen = 0
        self._masks: list[torch.Tensor] = []

    def start_batch(self, batch: Mapping[str, torch.Tensor]) -> None:
        """Takes the padding masks of the coming forward pass: positions where they are 0 never enter statistics."""
        self._seen = WeakTensorKeyDictionary()
        if not self.first_batch:
            self.first_batch = {k: v[:2] if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
        masks = (batch.get(key) for key in ("attention_mask", "decoder_attention_mask"))
        # Multiple-choice models take [batch, choices, length] and flatten it to sequences.
        masks = (mask.reshape(-1, mask.shape[-1]).bool() for mask in masks if mask is not None and mask.ndim in (2, 3))
        self._masks = [mask for mask in masks if not mask.all()]

    def record(self, name: str, x: torch.Tensor) -> None:
        """Adds the input `x`, `[..., K]`, of one call of the Linear `name`.

        Raises:
            `ValueError`: `x` has a NaN or an infinity in a real position.
        """
        identity, version, extrema = self._seen.get(x, (0, None, None))
        rows = None
        if version != x._version:
            self._num_seen += 1
            rows = self._real_rows(x)
            identity, extrema = self._num_seen, (rows.amin(0).float(), rows.amax(0).float()) if len(rows) else None
            self._seen[x] = (identity, x._version, extrema)
            if extrema is not None and not all(torch.isfinite(values).all() for values in extrema):
                raise ValueError(
                    f"Calibration stopped: the input of {name!r} has NaN or infinite values. Check the calibration "
                    "data, and whether the float model overflows in its dtype (try dtype=torch.float32). "
                    "Nothing was quantized."
                )
        if extrema is None:
            return
        known = self.statistics.get(name)
        if known is None:
            known = self.statistics[name] = LinearStatistics(*extrema, x.ndim, RowSample(self._seed))
        known.minimum = torch.minimum(known.minimum, extrema[0])
        known.maximum = torch.maximum(known.maximum, extrema[1])
        known.inputs = hash((known.inputs, identity))
        if rows is None and not len(known.sample.rows):
            rows = self._real_rows(x)  # not its first reader, but this Linear may never be the first of any tensor
        if rows is not None:
            known.sample.add(rows)

    def _real_rows(self, x: torch.Tensor) -> torch.Tensor:
        """The rows of `x`, `[..., K]`, that aren't padding: `[n, K]`."""
        rows = x.detach()
        for mask in self._masks:
            if mask.shape == x.shape[:-1]:
                rows = x[mask]
            elif x.shape[:-1] == (mask.numel(),):
                rows = x[mask.flatten()]
        return rows.reshape(-1, x.shape[-1])

    def unreached(self) -> list[str]:
        """Names of the Linears that no batch went through (or only padding)."""
        return [name for name in self._linears if name not in self.statistics]

    def groups(self) -> list[Group]:
        """The Linears that were reached, by the inputs they read. Linears that share one weight share a group too."""
        by_inputs: dict[int, list[str]] = defaultdict(list)
        for name, statistics in self.statistics.items():
            by_inputs[statistics.inputs].append(name)
        members: list[list[str]] = []
        for names in by_inputs.values():
            weights = {id(self._linears[name].weight) for name in names}
            sharing = [other for other in members if any(id(self._linears[name].weight) in weights for name in other)]
            members = [other for other in members if other not in sharing]
            members.append([*(name for other in sharing for name in other), *names])
        return [self._group(names) for names in members]

    def _group(self, names: list[str]) -> Group:
        statistics = [self.statistics[name] for name in names]
        minimum = torch.stack([one.minimum for one in statistics]).amin(0)
        maximum = torch.stack([one.maximum for one in statistics]).amax(0)
        # The first reader of a tensor samples it: one Linear for the whole group, unless only their weight is shared.
        rows = max((one.sample.rows for one in statistics), key=len)
        return Group(names, minimum, maximum, statistics[0].ndim, rows)


@contextmanager
def observe(linears: Mapping[str, nn.Linear], seed: int = 0) -> Iterator[Observer]:
    """Observes the inputs of `linears` while the context lasts; the hooks are removed even when it raises."""
    observer = Observer(linears, seed)

    def hook(name):
        def record(module, args, kwargs):
            observer.record(name, args[0] if args else kwargs["input"])

        return record

    handles = []
    try:
        for name, linear in linears.items():
            handles.append(linear.register_forward_pre_hook(hook(name), with_kwargs=True))
        yield observer
    finally:
        for handle in handles:
            handle.remove()
