"""What the ceilings of single cases say together; see teravox.ceiling."""

from collections.abc import Sequence
from typing import Any

import numpy as np

LOSS = 0.05  # of a label's volume: more is worth a warning
COLUMNS = ("spacing_mm", "label", "cases", "dice_mean", "dice_min", "nsd_mean", "nsd_min", "volume_change_worst", "components", "lost_components")


def warnings(found: dict[str, dict[str, Any]]) -> list[str]:
    """One line for each label that loses more than LOSS of its volume, or a component, on the way there and back."""
    lines = []
    for name, score in found.items():
        if score["volume_change"] is not None and score["volume_change"] < -LOSS:
            lines.append(f"label '{name}' loses {-100 * score['volume_change']:.1f} % of its volume on the way to the grid and back")
        if score["lost_components"]:
            parts = f"{score['lost_components']} of {score['components']} parts"
            lines.append(f"label '{name}' loses {parts} on the way to the grid and back, the largest of {score['lost_voxels_largest']} voxels")
        if score["volume_change"] is None and score["back_voxels"]:
            lines.append(f"label '{name}' gains {score['back_voxels']} voxels out of nothing")
    return lines


def summary(cases: Sequence[Sequence[dict[str, Any]]], names: Sequence[str]) -> list[dict[str, Any]]:
    """One row of COLUMNS per spacing and label over the cases that hold the label.

    cases : of each case, its entries per spacing; names : of the labels, in the order of the rows.
    """
    rows = []
    for entries in zip(*cases, strict=True):
        for name in names:
            found = [entry["labels"][name] for entry in entries if entry["labels"][name]["voxels"]]
            dice, nsd = [score["dice"] for score in found], [score["nsd"] for score in found]
            rows.append(
                {
                    "spacing_mm": spelled(entries[0]["spacing"]),
                    "label": name,
                    "cases": len(found),
                    "dice_mean": _rounded(np.mean(dice)) if found else None,
                    "dice_min": _rounded(min(dice)) if found else None,
                    "nsd_mean": _rounded(np.mean(nsd)) if found else None,
                    "nsd_min": _rounded(min(nsd)) if found else None,
                    "volume_change_worst": _rounded(max((score["volume_change"] for score in found), key=abs)) if found else None,
                    "components": sum(score["components"] for score in found),
                    "lost_components": sum(score["lost_components"] for score in found),
                }
            )
    return rows


def _rounded(value: float) -> float:
    return round(float(value), 6)


def spelled(spacing: Any) -> str:
    """A spacing in mm as text: a number, or three joined by x."""
    return "x".join(f"{edge:g}" for edge in (spacing if isinstance(spacing, list) else [spacing]))


def text(rows: Sequence[dict[str, Any]], cases: int) -> str:
    """The rows as a table to be read on a terminal."""
    cells = [COLUMNS, *([("" if row[name] is None else str(row[name])) for name in COLUMNS] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(COLUMNS))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    return "\n".join([f"what a segmentation that is perfect on the grid scores, over {cases} cases:", *lines])
