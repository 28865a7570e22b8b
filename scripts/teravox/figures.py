"""Pictures for the report, as PNG bytes: equal inputs give equal bytes on one set of package versions.

Nothing here touches pyplot or a user's matplotlibrc. Colours are those of Okabe and Ito, Color Universal Design, 2008, which
people with any common colour vision can tell apart.
"""

import contextlib
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from teravox.geometry import spacing_of
from teravox.planes import chosen_voxel, planes_of, window_of

DPI = 100
WIDTH_INCHES = 9.0  # 900 pixels
ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILION, PURPLE, BLACK = "#0072B2", "#D55E00", "#CC79A7", "#000000"
ON_DARK = (ORANGE, SKY, GREEN, YELLOW, PURPLE, VERMILION, BLUE)
ON_WHITE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK)
INK, FAINT = "#222222", "#8a8a8a"
DASHES = (0, (2.4, 1.4))  # in line widths
SMALL: dict[str, Any] = {"fontsize": 7.5, "color": "#666666"}
SMOOTHED_FRACTION = 0.05  # of the longest history; wide enough to see a trend through the noise of single steps
AXIS_NAMES = {
    "dice": "Dice",
    "iou": "IoU",
    "hd95": "HD95 (mm)",
    "assd": "ASSD (mm)",
    "nsd": "NSD",
    "volume_ml": "volume (ml)",
    "reference_volume_ml": "reference volume (ml)",
}
CURVES = {"dice_loss": "Dice loss", "cross_entropy": "cross-entropy", "learning_rate": "learning rate"}
FRACTIONS = ("dice", "iou", "nsd")  # their axes end at 1
STYLE = {
    "font.family": "DejaVu Sans",  # ships with matplotlib, so that letters look the same on every machine
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "text.parse_math": False,  # names of cases may hold a $
}


@contextlib.contextmanager
def _style() -> Iterator[None]:
    """matplotlib's own defaults with `STYLE` on top, for the time of one picture."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def _png(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=DPI, metadata={"Software": None})
    return stream.getvalue()


# ---------------------------------------------------------------------------------------------------------------- one case


def _outline(axes: Axes, mask: np.ndarray, step: tuple[float, float], colour: str, dashed: bool) -> None:
    """Draw the outline of a boolean plane (rows from the top, columns from the left); step (across, down) in mm."""
    if not mask.any():
        return
    rows, columns = mask.shape
    across = (np.arange(-1, columns + 1) + 0.5) * step[0]
    up = (rows - np.arange(-1, rows + 1) - 0.5) * step[1]
    width, halo = (1.6, 2.9) if dashed else (1.3, 1.9)
    contours = axes.contour(
        across, up, np.pad(mask, 1).astype(np.float64), levels=[0.5], colors=[colour], linewidths=width,
        linestyles=[DASHES] if dashed else "solid", zorder=4 if dashed else 3,
    )  # fmt: skip
    contours.set_path_effects([patheffects.Stroke(linewidth=halo, foreground=BLACK), patheffects.Normal()])


def _panel(axes: Axes, grey: np.ndarray, window: tuple[float, float], step: tuple[float, float], size: tuple[float, float]) -> None:
    """Show one plane of the image in true proportions, centred in black axes of `size` (width, height) inches."""
    rows, columns = grey.shape
    across, up = columns * step[0], rows * step[1]
    shown = np.nan_to_num(grey.astype(np.float64), nan=window[0], posinf=window[1], neginf=window[0])
    axes.imshow(np.clip(shown, *window), cmap="gray", vmin=window[0], vmax=window[1], extent=(0, across, 0, up), interpolation="hanning")
    half = 0.51 * max(across / size[0], up / size[1])
    axes.set(xlim=(across / 2 - half * size[0], across / 2 + half * size[0]), ylim=(up / 2 - half * size[1], up / 2 + half * size[1]))
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    axes.spines[:].set_visible(False)


def _annotate(axes: Axes, note: str, letters: str) -> None:
    """Write a note in the corner, and the directions left, right, top and bottom at the edges."""
    style: dict[str, Any] = {"transform": axes.transAxes, "color": "white", "path_effects": [patheffects.withStroke(linewidth=2, foreground=BLACK)]}
    axes.text(0.02, 0.985, note, ha="left", va="top", fontsize=7.5, **style)
    places = [(0.02, 0.5, "left", "center"), (0.98, 0.5, "right", "center"), (0.5, 0.985, "center", "top"), (0.5, 0.015, "center", "bottom")]
    for letter, (x, y, horizontal, vertical) in zip(letters, places, strict=True):
        axes.text(x, y, letter, ha=horizontal, va=vertical, **style)


def _case_figure(
    image: np.ndarray, reference: np.ndarray, prediction: np.ndarray, affine: np.ndarray, labels: Sequence[Mapping[str, Any]], title: str,
    window: tuple[float, float] | None,
) -> Figure:  # fmt: skip
    for name, volume in (("reference", reference), ("prediction", prediction)):
        if image.ndim != 3 or volume.shape != image.shape:
            raise ValueError(f"{name} has shape {volume.shape}, image {image.shape}; expected one shape (x, y, z)")
    values = [int(label["value"]) for label in labels]
    colours = _cycle(ON_DARK, len(labels))
    x, y, z = chosen_voxel(reference, prediction, spacing_of(affine), values)
    grey, truth, guess = (planes_of(volume, (x, y, z)) for volume in (image, reference, prediction))
    low, high = window or window_of(grey)
    sx, sy, sz = (float(s) for s in spacing_of(affine))
    steps = ((sx, sy), (sx, sz), (sy, sz))
    notes = (f"axial, z = {z}", f"coronal, y = {y}", f"sagittal, x = {x}")

    handles = [Line2D([], [], color=colour, linewidth=5, label=str(label["name"])) for colour, label in zip(colours, labels, strict=True)]
    handles.append(Line2D([], [], color=INK, linewidth=1.3, label="reference"))
    handles.append(Line2D([], [], color=INK, linewidth=1.6, linestyle=DASHES, label="prediction"))
    longest = max(len(str(handle.get_label())) for handle in handles)
    in_a_row = min(max(int(125 / (longest + 7)), 1), 7)
    above, below, gap = 0.4, 0.4 + 0.2 * math.ceil(len(handles) / in_a_row), 0.07
    side = (WIDTH_INCHES - 4 * gap) / 3
    height = above + side + below
    figure = Figure(figsize=(WIDTH_INCHES, height), dpi=DPI, facecolor="white")
    figure.text(gap / WIDTH_INCHES, 1 - above / 2 / height, title, fontsize=min(11, 1100 / max(len(title), 1)), fontweight="bold", va="center")
    for number, letters in enumerate(("RLAP", "RLSI", "APSI")):
        left = gap + number * (side + gap)
        axes = figure.add_axes((left / WIDTH_INCHES, below / height, side / WIDTH_INCHES, side / height), facecolor="black")
        _panel(axes, grey[number], (low, high), steps[number], (side, side))
        for value, colour in zip(values, colours, strict=True):
            _outline(axes, truth[number] == value, steps[number], colour, dashed=False)
            _outline(axes, guess[number] == value, steps[number], colour, dashed=True)
        _annotate(axes, notes[number], letters)
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(-0.002, (below - 0.03) / height), ncols=in_a_row, handlelength=1.8)
    small = (
        f"Radiological convention: the patient's right (R) is on the left. Voxels {sx:.3g} × {sy:.3g} × {sz:.3g} mm. Grey {low:.4g} to {high:.4g}."
    )
    figure.text(gap / WIDTH_INCHES, 0.14 / height, small, **SMALL, va="center")
    return figure


def _cycle(colours: Sequence[str], n: int) -> list[str]:
    return [colours[i % len(colours)] for i in range(n)]


def case_picture(
    image: np.ndarray, reference: np.ndarray, prediction: np.ndarray, affine: np.ndarray, labels: Sequence[Mapping[str, Any]], title: str,
    window: tuple[float, float] | None = None,
) -> bytes:  # fmt: skip
    """Three planes of one case with the outlines of reference (solid) and prediction (dashed): PNG bytes, 900 pixels wide.

    image : any real dtype, (x, y, z), indices running to R, A, S (`geometry.to_canonical`); reference, prediction : integer
    labels on the same grid; affine : (4, 4), RAS+, mm; labels : each with `name` and `value`, in the order of their colours,
    which repeat after seven; window : (black, white) in the image's unit, by default `planes.window_of` the planes. The planes go
    through `planes.chosen_voxel`. Outlines pass half a voxel outside the outermost voxel centres. Raises ValueError for different
    shapes.
    """
    with _style():
        return _png(_case_figure(np.asarray(image), np.asarray(reference), np.asarray(prediction), affine, labels, title, window))


# ---------------------------------------------------------------------------------------------------------------- all folds


def _number(value: Any) -> float:
    return math.nan if value is None or value == "" else float(value)


def moving_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Mean over the `window` (odd) values around each, fewer at the ends; values that are not finite are left out. (n,) -> (n,)."""
    if not values.size:
        return values
    finite = np.isfinite(values)
    kernel = np.ones(window)
    half = window // 2
    total = np.convolve(np.where(finite, values, 0.0), kernel)[half : half + values.size]
    n = np.convolve(finite.astype(float), kernel)[half : half + values.size]
    return np.where(n > 0.5, total / np.maximum(n, 1), math.nan)


def smoothing_window(lengths: Sequence[int]) -> int:
    """The odd number of rows that curves are averaged over: `SMOOTHED_FRACTION` of the longest."""
    return 2 * round(SMOOTHED_FRACTION * max(lengths, default=0) / 2) + 1


def _curves_figure(histories: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    window = smoothing_window([len(rows) for rows in histories.values()])
    figure = Figure(figsize=(WIDTH_INCHES, 3.3), dpi=DPI, layout="constrained", facecolor="white")
    panels = figure.subplots(1, 3)
    for axes, (key, name) in zip(panels, CURVES.items(), strict=True):
        for colour, (fold, rows) in zip(_cycle(ON_WHITE, len(histories)), histories.items(), strict=True):
            steps = np.array([_number(row["step"]) for row in rows])
            values = np.array([_number(row.get(key)) for row in rows])
            marker = "o" if len(rows) == 1 else None
            if key == "learning_rate":
                axes.plot(steps, values, color=colour, linewidth=1.5, marker=marker, markersize=4)
                continue
            axes.plot(steps, values, color=colour, linewidth=0.7, alpha=0.25, zorder=2)
            axes.plot(steps, moving_mean(values, window), color=colour, linewidth=1.8, zorder=3, marker=marker, markersize=4, label=str(fold))
        axes.set_title(name, fontsize=10, fontweight="bold", loc="left")
        axes.set_xlabel("step")
        axes.margins(x=0.02)
        axes.ticklabel_format(axis="y", style="sci", scilimits=(-3, 4))
    if histories:
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper left", ncols=min(len(names), 10), handlelength=1.4)
        figure.supxlabel(f"Bold: mean of {window} logged rows, centred. Faint: every logged row.", **SMALL, x=0.01, ha="left")
    return figure


def learning_curves(histories: Mapping[str, Sequence[Mapping[str, Any]]]) -> bytes:
    """Dice loss, cross-entropy and learning rate over steps, one colour per fold: PNG bytes, 900 pixels wide.

    histories : fold name -> rows with step, dice_loss, cross_entropy, learning_rate, in order of step. Losses are drawn raw
    (faint) and as `moving_mean` over `smoothing_window` rows, which the picture states. Colours repeat after seven folds.
    """
    with _style():
        return _png(_curves_figure(histories))


# ---------------------------------------------------------------------------------------------------------------- all cases

SET_MARKS = {"validation": (BLUE, "o"), "test": (VERMILION, "D")}
OTHER_MARK = (GREEN, "s")


def _box(axes: Axes, values: np.ndarray, place: float, colour: str, marker: str) -> None:
    """A horizontal box with its dots just below it; values (n,) with n > 0."""
    line = {"color": colour, "linewidth": 1.1}
    box = {"facecolor": matplotlib.colors.to_rgba(colour, 0.15), "edgecolor": colour, "linewidth": 1.1}
    axes.boxplot(
        values, positions=[place - 0.05], widths=0.15, orientation="horizontal", showfliers=False, patch_artist=True, manage_ticks=False,
        boxprops=box, whiskerprops=line, capprops=line, medianprops={"color": colour, "linewidth": 2.4},
    )  # fmt: skip
    axes.plot(values, np.full(values.size, place + 0.1), marker, color=colour, markersize=4.2, alpha=0.5, markeredgewidth=0, zorder=4, clip_on=False)


def _boxplots_figure(rows: Sequence[Mapping[str, Any]], metric: str, labels: Sequence[str], space: str) -> Figure:
    shown = [row for row in rows if row["space"] == space and row["label"] in labels]
    found = {str(row["set"]) for row in shown}
    sets = [name for name in SET_MARKS if name in found] + sorted(found - set(SET_MARKS))
    height = 1.15 + max(len(labels), 2) * max(0.34 * len(sets) + 0.1, 0.5)
    figure = Figure(figsize=(WIDTH_INCHES, height), dpi=DPI, layout="constrained", facecolor="white")
    axes = figure.subplots()
    axes.grid(False, axis="y")
    ticks, drawn = [], []
    for position, label in enumerate(labels):
        counts = []
        for number, subset in enumerate(sets):
            values = np.array([_number(row[metric]) for row in shown if row["label"] == label and row["set"] == subset], dtype=np.float64)
            used = values[~np.isnan(values)]
            counts.append(f"{subset} {used.size}" + (f" ({values.size - used.size} excluded)" if used.size < values.size else ""))
            if used.size:
                drawn.append(used)
                _box(axes, used, position + (number - (len(sets) - 1) / 2) * 0.38, *SET_MARKS.get(subset, OTHER_MARK))
        ticks.append("\n".join([str(label), *counts]))
    axes.set_yticks(range(len(labels)), ticks)
    axes.set_ylim(max(len(labels), 1) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    pooled = np.concatenate(drawn) if drawn else np.ones(1)
    if metric in FRACTIONS:
        axes.set_xlim(max(min(math.floor(10 * float(pooled.min()) - 0.2) / 10, 0.8), 0.0), 1)
    else:
        axes.set_xlim(0, max(1.05 * float(pooled.max()), 1e-3))
    axes.set_xlabel(AXIS_NAMES.get(metric, metric))
    marks = [(subset, *SET_MARKS.get(subset, OTHER_MARK)) for subset in sets]
    handles = [Line2D([], [], color=colour, marker=marker, linestyle="none", markersize=5, label=subset) for subset, colour, marker in marks]
    if handles:
        figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), handletextpad=0.2)
    note = f"One mark per case, {space} space. Box: quartiles and median; whiskers: furthest case within 1.5 box lengths. nan is excluded."
    figure.supxlabel(note, **SMALL, x=0.01, ha="left")
    return figure


def boxplots(rows: Sequence[Mapping[str, Any]], metric: str, labels: Sequence[str], space: str = "native") -> bytes:
    """A metric per label: a box and one dot per case, for each set in its own colour and mark: PNG bytes, 900 pixels wide.

    rows : `metrics.COLUMNS`; labels : the rows' labels, in the order of the picture. Sets have boxes side by side, never one in
    common: a validation case was used to choose settings, a test case was not. Tick labels give the number of cases per set and
    how many were excluded as nan.
    """
    with _style():
        return _png(_boxplots_figure(rows, metric, labels, space))
