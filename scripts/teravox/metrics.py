"""How well one mask agrees with another, and how to sum such figures up over cases and labels.

Every definition is pinned here because implementations differ: which points make a surface, which form of HD95, what an empty
mask scores. Distances are in mm, volumes in ml (1 ml = 1000 mm^3).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from teravox.geometry import spacing_of, voxel_volume_ml
from teravox.surfaces import TOLERANCE_EPSILON_MM, directed_distances, surface_of

METRICS = ("dice", "iou", "hd95", "assd", "nsd", "volume_ml", "reference_volume_ml")
COLUMNS = ("case", "patient", "fold", "set", "label", "space", *METRICS)
EMPTY_KINDS = ("none", "both", "reference", "prediction")
LOWER_IS_BETTER = ("hd95", "assd")
HIGHER_IS_BETTER = ("dice", "iou", "nsd")

EMPTY_RULE = (
    "Neither mask holds a voxel: Dice, IoU, HD95, ASSD and NSD are undefined (nan), left out of every mean, and counted. "
    "Exactly one mask is empty (a missed or an invented structure): Dice, IoU and NSD are 0, and HD95 and ASSD are the image "
    "diagonal in mm, corner to corner of the field of view; such cases stay in every mean and are counted too."
)


def union_box(first: np.ndarray, second: np.ndarray) -> tuple[slice, slice, slice]:
    """The bounding box of two boolean masks (x, y, z) together, one voxel wider on each side where the array allows.

    At least one mask must hold a voxel.
    """
    box = []
    for axis in range(3):
        others = tuple(other for other in range(3) if other != axis)
        used = np.flatnonzero(first.any(axis=others) | second.any(axis=others))
        box.append(slice(max(int(used[0]) - 1, 0), int(used[-1]) + 2))
    return box[0], box[1], box[2]


def diagonal_of(shape: Sequence[int], affine: np.ndarray) -> float:
    """Corner to corner of the field of view, mm: the norm of shape (x, y, z) times spacing."""
    return float(np.linalg.norm(np.array(shape[:3]) * spacing_of(affine)))


def _check(prediction: np.ndarray, reference: np.ndarray, affine: np.ndarray, tolerance_mm: float) -> None:
    for name, mask in (("prediction", prediction), ("reference", reference)):
        if mask.dtype != np.bool_:
            raise ValueError(f"{name} has dtype {mask.dtype}, expected bool")
        if mask.ndim != 3 or mask.size == 0:
            raise ValueError(f"{name} has shape {mask.shape}, expected three axes (x, y, z) that are not empty")
    if prediction.shape != reference.shape:
        raise ValueError(f"prediction has shape {prediction.shape}, expected the reference's {reference.shape}")
    if np.shape(affine) != (4, 4):
        raise ValueError(f"affine has shape {np.shape(affine)}, expected (4, 4)")
    if not (math.isfinite(tolerance_mm) and tolerance_mm >= 0):
        raise ValueError(f"tolerance_mm is {tolerance_mm}, expected a finite value of at least 0")


def score(
    prediction: np.ndarray, reference: np.ndarray, affine: np.ndarray, tolerance_mm: float, excluded: np.ndarray | None = None
) -> dict[str, Any]:
    """Compare two masks on one grid.

    prediction, reference : bool, (x, y, z), one shape.
    affine : (4, 4), RAS+, mm; orthogonal, in any direction and with any spacing.
    tolerance_mm : float, mm, at least 0; how far a surface may lie off and still count for NSD.
    excluded : bool, (x, y, z), voxels that nobody judged; None for none. They are removed from both masks before anything is
        counted, volumes included. Surfaces are those of what remains: where the excluded region cuts through a mask, the cut
        is a surface of that mask, and of both, at distance 0, where it cuts through both.

    Returns floats dice, iou, hd95 (mm), assd (mm), nsd, volume_ml, reference_volume_ml, and `empty`: "none", "both",
    "reference" (the reference is empty, the prediction is not) or "prediction" (the other way round). With A and B the two
    masks, |.| a number of voxels, S their surface voxels (`surface_of`), d(a, B) the distance between voxel centres from a
    surface voxel a to the nearest of S(B):

    dice : 2 |A & B| / (|A| + |B|) (Dice, Ecology 26:297-302, 1945).
    iou : |A & B| / |A | B| (Jaccard, New Phytologist 11:37-50, 1912).
    hd95 : max(P95 of d(a, B), P95 of d(b, A)), each percentile interpolated linearly; not the percentile of the pooled set
        (the partial distance of Huttenlocher, Klanderman, Rucklidge, IEEE TPAMI 15:850-863, 1993, at 95 %).
    assd : (sum of d(a, B) + sum of d(b, A)) / (|S(A)| + |S(B)|) (Heimann et al., IEEE TMI 28:1251-1265, 2009).
    nsd : (number of a with d(a, B) <= tolerance + the same for b) / (|S(A)| + |S(B)|). The surface Dice of Nikolov et al.,
        arXiv 1809.04430, 2018, in a voxel version: surfaces are counted in voxels, not in mm^2 of a mesh.
    volumes : number of voxels times |det| of the affine's 3x3 part.

    `EMPTY_RULE` says what empty masks score. Raises ValueError for other dtypes, shapes or tolerances.
    """
    _check(prediction, reference, affine, tolerance_mm)
    if excluded is not None:
        if excluded.dtype != np.bool_ or excluded.shape != prediction.shape:
            raise ValueError(f"excluded has dtype {excluded.dtype} and shape {excluded.shape}, expected bool and {prediction.shape}")
        prediction, reference = prediction & ~excluded, reference & ~excluded
    count, reference_count = int(np.count_nonzero(prediction)), int(np.count_nonzero(reference))
    volumes = {"volume_ml": count * voxel_volume_ml(affine), "reference_volume_ml": reference_count * voxel_volume_ml(affine)}
    if not count and not reference_count:
        return {**dict.fromkeys(METRICS[:5], math.nan), **volumes, "empty": "both"}
    if not count or not reference_count:
        diagonal = diagonal_of(prediction.shape, affine)
        worst = {"dice": 0.0, "iou": 0.0, "hd95": diagonal, "assd": diagonal, "nsd": 0.0}
        return {**worst, **volumes, "empty": "reference" if count else "prediction"}

    box = union_box(prediction, reference)
    prediction, reference = prediction[box], reference[box]
    common = int(np.count_nonzero(prediction & reference))
    spacing = spacing_of(affine)
    surface, reference_surface = surface_of(prediction), surface_of(reference)
    there = directed_distances(surface, reference_surface, spacing)
    back = directed_distances(reference_surface, surface, spacing)
    limit = tolerance_mm + TOLERANCE_EPSILON_MM
    within = int(np.count_nonzero(there <= limit)) + int(np.count_nonzero(back <= limit))
    return {
        "dice": 2 * common / (count + reference_count),
        "iou": common / (count + reference_count - common),
        "hd95": max(float(np.percentile(there, 95)), float(np.percentile(back, 95))),
        "assd": float(there.sum() + back.sum()) / (there.size + back.size),
        "nsd": within / (there.size + back.size),
        **volumes,
        "empty": "none",
    }


def describe(values: Iterable[float]) -> dict[str, int | float | None]:
    """n values used, the number excluded (nan), and mean, sd (n - 1 in the denominator), median, quartiles and extremes.

    What is undefined (all of them for n = 0, sd for n < 2) is None, so that the result is JSON. Quartiles are interpolated
    linearly.
    """
    everything = np.array([float(value) for value in values], dtype=np.float64)
    used = everything[~np.isnan(everything)]
    result: dict[str, int | float | None] = {"n": int(used.size), "excluded": int(everything.size - used.size)}
    names = ("mean", "sd", "median", "q1", "q3", "minimum", "maximum")
    if not used.size:
        return {**result, **dict.fromkeys(names)}
    q1, median, q3 = (float(q) for q in np.percentile(used, [25, 50, 75]))
    sd = float(used.std(ddof=1)) if used.size > 1 else None
    figures = (float(used.mean()), sd, median, q1, q3, float(used.min()), float(used.max()))
    return {**result, **dict(zip(names, figures, strict=True))}


def summarise(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Sum up rows of `COLUMNS` and `empty`: one entry per (set, space, label) in first-seen order, then one per (set, space) over labels.

    Each entry has set, space, label, `over` ("cases" or "labels"), `rows` (how many it was made from), `empty` (rows per kind of
    `EMPTY_KINDS`) and for each of `METRICS` what `describe` returns. An entry over cases describes the rows' values. An entry
    over labels has label "mean" and describes the labels' means: first the mean over cases for each label, then the mean over
    those means, so that a label seen in few cases weighs as much as any other, n is the number of labels, and `excluded` the
    number of labels without a single value. Voxels are never pooled over cases. Leave rows of regions out of `rows` if their
    means are not to count beside those of the labels they unite.

    Values may be text, as read from a CSV. The result is JSON without nan.
    """
    groups: dict[tuple[Any, Any, Any], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["set"], row["space"], row["label"]), []).append(row)
    over_cases = [
        {
            "set": group[0],
            "space": group[1],
            "label": group[2],
            "over": "cases",
            "rows": len(members),
            "empty": {kind: sum(row["empty"] == kind for row in members) for kind in EMPTY_KINDS},
            **{metric: describe(row[metric] for row in members) for metric in METRICS},
        }
        for group, members in groups.items()
    ]
    by_space: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
    for entry in over_cases:
        by_space.setdefault((entry["set"], entry["space"]), []).append(entry)
    over_labels = [
        {
            "set": where[0],
            "space": where[1],
            "label": "mean",
            "over": "labels",
            "rows": sum(entry["rows"] for entry in entries),
            "empty": {kind: sum(entry["empty"][kind] for entry in entries) for kind in EMPTY_KINDS},
            **{metric: describe(math.nan if entry[metric]["n"] == 0 else entry[metric]["mean"] for entry in entries) for metric in METRICS},
        }
        for where, entries in by_space.items()
    ]
    return over_cases + over_labels


def worst_first(rows: Sequence[Mapping[str, Any]], metric: str = "dice", space: str = "native") -> list[str]:
    """The cases of `space`, that with the worst value over its labels first; ties stay in first-seen order.

    Worst is lowest for dice, iou and nsd, highest for hd95 and assd. nan is ignored; a case with nothing else comes last.
    Raises ValueError for a metric without a better or worse.
    """
    if metric not in HIGHER_IS_BETTER + LOWER_IS_BETTER:
        raise ValueError(f"metric is {metric!r}, expected one of {', '.join(HIGHER_IS_BETTER + LOWER_IS_BETTER)}")
    sign = -1.0 if metric in LOWER_IS_BETTER else 1.0
    worst: dict[str, float] = {}
    for row in rows:
        if row["space"] == space:
            value = sign * float(row[metric])
            worst[row["case"]] = min(worst.get(row["case"], math.inf), math.inf if math.isnan(value) else value)
    return sorted(worst, key=lambda case: worst[case])
