"""What quantization did to each group of Linears: a table to print, and a JSON file beside the checkpoint."""

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import nn

REPORT_NAME = "quantization_report.json"
HEADER = ("group", "Linears", "int8", "alpha", "max|X|", "smoothed", "max|W|", "smoothed", "folded", "SQNR dB")
WITH_CHANNELS = 4  # groups whose channels are kept: all of a large model's would be tens of megabytes
NUMBERS = re.compile(r"\[\s+([\d.e+,\s-]+)\s+\]")


@dataclass
class ChannelMaxima:
    """Largest magnitudes of each channel of one group's input and weights, before and after smoothing.

    Attributes:
        x, w, smoothed_x, smoothed_w (`list[float]`): `K` numbers each, to four digits.
    """

    x: list[float]
    w: list[float]
    smoothed_x: list[float]
    smoothed_w: list[float]

    @classmethod
    def of(cls, x_absmax: torch.Tensor, w_absmax: torch.Tensor, factors: torch.Tensor) -> "ChannelMaxima":
        """From the maxima before smoothing and the factors `s`, `[K]` each, float32."""
        maxima = (x_absmax, w_absmax, x_absmax / factors, w_absmax * factors)
        return cls(*([float(f"{value:.4g}") for value in values.tolist()] for values in maxima))


@dataclass
class GroupReport:
    """One group of Linears with a common input.

    Attributes:
        names (`list[str]`): full names of the Linears.
        alpha (`float` or `None`): smoothing strength that was used. It and what else belongs to the input are `None`
            with weight-only int8.
        x_absmax, w_absmax (`float`): largest magnitudes of the input and of the weights before smoothing.
        smoothed_x_absmax, smoothed_w_absmax (`float`): the same after smoothing.
        act_scale (`float` or `None`): static scale of the smoothed input; `None` for dynamic activations.
        sqnr_db (`float`): signal-to-noise ratio of the group's outputs on a sample of calibration rows; of the weight
            itself with weight-only int8.
        folded_into (`str` or `None`): the norm or Linear before the group that has the factors in it, so that nothing
            is multiplied at run time.
        activation (`str`): `"static"`, `"dynamic"` or `"none"`; another than the model's where the group fell back.
        output_sqnr_db (`float` or `None`): signal-to-noise ratio of the model's outputs with this group alone in int8
            as the model's config has it; `None` where no `fallback` budget made it be measured.
        channels (`ChannelMaxima` or `None`): kept for the few groups with the lowest `sqnr_db`.
    """

    names: list[str]
    alpha: float | None
    x_absmax: float | None
    w_absmax: float
    smoothed_x_absmax: float | None
    smoothed_w_absmax: float
    act_scale: float | None
    sqnr_db: float
    folded_into: str | None = None
    activation: str = "static"
    output_sqnr_db: float | None = None
    channels: ChannelMaxima | None = None


@dataclass
class QuantizationReport:
    """All groups of a model, and the Linears left in float with the reason.

    Attributes:
        groups (`list[GroupReport]`): in the order of the forward pass.
        kept (`dict[str, str]`): full name of each Linear in float, and of other modules that multiply by weights
            (stacked experts, `nn.MultiheadAttention`): why.
        output_sqnr_db (`float` or `None`): signal-to-noise ratio of the outputs of the quantized model on calibration
            samples that were held out; `None` without a `fallback` budget.
    """

    groups: list[GroupReport] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    output_sqnr_db: float | None = None

    @property
    def mean_sqnr_db(self) -> float:
        """Mean over the groups of their `sqnr_db`."""
        return sum(group.sqnr_db for group in self.groups) / len(self.groups)

    def worst(self, count: int) -> list[GroupReport]:
        """The `count` groups with the lowest `sqnr_db`, lowest first."""
        return sorted(self.groups, key=lambda group: group.sqnr_db)[:count]

    def drop_channels(self) -> None:
        """Keeps the maxima of single channels of the worst few groups only."""
        for group in self.worst(len(self.groups))[WITH_CHANNELS:]:
            group.channels = None

    def plot(self, path: str | Path) -> list[Path]:
        """Draws the channel maxima of the worst groups before and after smoothing, and the SQNR of every group.

        Args:
            path (`str` or `Path`): a file (`report.png`, `.pdf`, `.svg`) for one picture of everything, or a folder for
                `channels.png` and `sqnr.png`.

        Returns:
            The files that were written. A report of an older checkpoint has no channels: then without these.

        Raises:
            `ImportError`: matplotlib isn't installed (`pip install matplotlib`, or the extra `plot` of this package).
        """
        from hf_smoothquant.plots import plot_report

        return plot_report(self, path)

    def __str__(self) -> str:
        measured = any(group.output_sqnr_db is not None for group in self.groups)
        rows = [HEADER + (("output dB",) if measured else ())]
        for group in self.groups:
            numbers = (group.x_absmax, group.smoothed_x_absmax, group.w_absmax, group.smoothed_w_absmax)
            maxima = (_cell(number, ".3g") for number in numbers)
            folded = "yes" if group.folded_into else "no"
            row = (group.names[0], str(len(group.names)), group.activation, _cell(group.alpha, "g"), *maxima, folded)
            row += (f"{group.sqnr_db:.1f}",)
            rows.append(row + ((f"{group.output_sqnr_db:.1f}",) if measured else ()))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(cells))
            for cells in (zip(row, widths, strict=True) for row in rows)
        ]
        if self.output_sqnr_db is not None:
            lines.append(f"outputs on held-out samples: {self.output_sqnr_db:.1f} dB")
        lines += [f"in float: {name} ({reason})" for name, reason in self.kept.items()]
        return "\n".join(lines)

    def save(self, folder: str | Path) -> None:
        """Writes the report as `quantization_report.json` into `folder`, which is made if need be."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / REPORT_NAME).write_text(
            NUMBERS.sub(lambda numbers: f"[{' '.join(numbers[1].split())}]", json.dumps(asdict(self), indent=1))
        )

    @classmethod
    def load(cls, folder: str | Path) -> "QuantizationReport | None":
        """Reads the report in `folder`; `None` when there is none."""
        file = Path(folder) / REPORT_NAME
        if not file.is_file():
            return None
        stored = json.loads(file.read_text())
        groups = [GroupReport(**group) for group in stored["groups"]]
        for group in groups:
            group.channels = group.channels and ChannelMaxima(**group.channels)
        return cls(**stored | {"groups": groups})


def _cell(number: float | None, form: str) -> str:
    return "-" if number is None else format(number, form)


def quantization_report(model: nn.Module) -> QuantizationReport:
    """The report of a quantized model, made when it was calibrated or read from beside its checkpoint.

    Raises:
        `ValueError`: the model isn't quantized by this package, or its checkpoint came without the report.
    """
    report = getattr(getattr(model, "hf_quantizer", None), "report", None)
    if report is None:
        raise ValueError(
            f"{type(model).__name__} has no quantization report: it is not a model quantized by hf_smoothquant, or its "
            f"checkpoint was copied without {REPORT_NAME}."
        )
    return report
