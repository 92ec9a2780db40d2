"""Pictures of a quantization report: what smoothing did to the channels of the worst groups, and the SQNR of all."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

    from hf_smoothquant.report import GroupReport, QuantizationReport

BEFORE, AFTER, WORST = "#c44e52", "#4c72b0", "#c44e52"
LOG_RANGE = 30  # a linear axis hides what is smaller than a thirtieth of its height
WIDTH, ROW_HEIGHT, BAR_HEIGHT = 11.0, 2.6, 0.24  # inches


def plot_report(report: "QuantizationReport", path: str | Path) -> list[Path]:
    """Draws `report`; see `QuantizationReport.plot`."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Plots of the report need matplotlib: pip install matplotlib") from error
    path = Path(path)
    worst = [group for group in report.worst(len(report.groups)) if group.channels is not None]
    heights = {"sqnr": 1.2 + BAR_HEIGHT * len(report.groups)}
    if worst:
        heights = {"channels": 0.5 + ROW_HEIGHT * len(worst), **heights}

    def new_figure(height: float) -> "FigureBase":
        figure = Figure((WIDTH, height), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.1, h_pad=0.08)  # inches, also to the edge of the picture
        return figure

    def draw(figure: "FigureBase", name: str) -> None:
        if name == "channels":
            draw_channels(figure, worst)
        else:
            draw_sqnr(figure, report.groups, {id(group) for group in worst})

    if path.suffix:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure = new_figure(sum(heights.values()))
        parts = np.atleast_1d(figure.subfigures(len(heights), 1, height_ratios=list(heights.values())))
        for part, name in zip(parts, heights, strict=True):
            draw(part, name)
        figure.savefig(path, dpi=120)
        return [path]
    path.mkdir(parents=True, exist_ok=True)
    for name, height in heights.items():
        figure = new_figure(height)
        draw(figure, name)
        figure.savefig(path / f"{name}.png", dpi=120)
    return [path / f"{name}.png" for name in heights]


def draw_channels(figure: "FigureBase", groups: Sequence["GroupReport"]) -> None:
    """Maxima of each channel of the inputs (left) and weights (right) of each group, before and after smoothing.

    Channels go from the largest input to the smallest, in both columns: what leaves the inputs on the left of one turns
    up on the left of the other.
    """
    axes = figure.subplots(len(groups), 2, squeeze=False)
    for row, group in zip(axes, groups, strict=True):
        channels = group.channels
        order = np.argsort(channels.x)[::-1]
        pairs = ((channels.x, channels.smoothed_x, "max|X|"), (channels.w, channels.smoothed_w, "max|W|"))
        for ax, (before, after, label) in zip(row, pairs, strict=True):
            before, after = np.array(before)[order], np.array(after)[order]
            ax.plot(before, ".", color=BEFORE, markersize=3, label="before smoothing", rasterized=True)
            ax.plot(after, ".", color=AFTER, markersize=3, label="after smoothing", rasterized=True)
            _scale(ax, np.concatenate([before, after]))
            ax.set(ylabel=label, xlim=(-0.02 * len(order), 1.02 * len(order)))
            ax.grid(alpha=0.3)
        row[0].set_title(title(group.names), loc="left", fontsize=10)
        row[1].set_title(f"alpha {group.alpha:g}, SQNR {group.sqnr_db:.1f} dB", loc="right", fontsize=10)
    for ax, what in zip(axes[-1], ("input", "weight"), strict=True):
        ax.set_xlabel(f"{what} channel, in the order of max|X| before smoothing")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, markerscale=4, frameon=False)


def draw_sqnr(figure: "FigureBase", groups: Sequence["GroupReport"], worst: set[int]) -> None:
    """A bar per group, in the order of the forward pass from the top; those in `worst` (ids) stand out."""
    ax = figure.subplots()
    colors = [WORST if id(group) in worst else AFTER for group in groups]
    values = [group.sqnr_db for group in groups]
    bars = ax.barh(range(len(groups)), values, color=colors, height=0.75)
    ax.bar_label(bars, fmt="%.1f", padding=3, fontsize=8)
    ax.set_yticks(range(len(groups)), [title(group.names) for group in groups], fontsize=8)
    ax.set(ylim=(len(groups) - 0.4, -0.6), xlabel="SQNR of the group's outputs in dB (higher is better)")
    ax.margins(x=0.08)
    ax.grid(axis="x", alpha=0.3)
    ax.set_axisbelow(True)


def title(names: Sequence[str]) -> str:
    """Names of Linears with what they have in common written once: `layer.0.self.{query, key, value}`."""
    if len(names) == 1:
        return names[0]
    parts = [name.split(".") for name in names]
    common = 0
    while len({tuple(part[: common + 1]) for part in parts}) == 1 and common < min(map(len, parts)) - 1:
        common += 1
    rest = ", ".join(".".join(part[common:]) for part in parts)
    return ".".join([*parts[0][:common], f"{{{rest}}}"])


def _scale(ax, values: np.ndarray) -> None:
    positive = values[values > 0]
    if len(positive) and positive.max() > LOG_RANGE * np.median(positive):
        ax.set_yscale("log", nonpositive="mask")
    else:
        ax.set_ylim(bottom=0)
