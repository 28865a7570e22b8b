"""Parts of a case to train on, drawn so that labels are seen often enough."""

from collections import Counter

import numpy as np

from teravox.architecture import input_edges
from teravox.shard_reader import ShardReader

Box = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]  # first and one past the last index along z, y, x


def draw(reader: ShardReader, case: str, size: list[int], foreground: float, values: list[int], rng: np.random.Generator) -> Box:
    """A patch of a case. size : (x, y, z) voxels; an axis shorter than that is taken whole.

    With probability `foreground` the patch lies around a voxel of a label: of those of `values` that the case has one is drawn, all with the
    same chance, then one of its voxels, all with the same chance (as near to the middle as the border allows). Otherwise, and in a case
    without these labels, all places have the same chance. The draws that decide are made in either case.
    """
    place = reader.place(case)
    shape = np.array(place.entry["shape"][:3])
    extent = np.array(input_edges(list(shape), size[::-1]))
    about, pick = rng.random() < foreground, rng.random(2)
    start = rng.integers(0, shape - extent, endpoint=True)
    counts = [{int(value): count for value, count in record["label_voxels"].items() if int(value) in values} for record in place.records]
    totals = sum(map(Counter, counts), Counter[int]())
    if about and totals:
        value = sorted(totals)[int(pick[0] * len(totals))]
        number = int(pick[1] * totals[value])
        ends = np.cumsum([count.get(value, 0) for count in counts])
        block = int(np.searchsorted(ends, number, side="right"))
        label = reader.load_label(case, block)
        inside = np.flatnonzero(label == value)[number - ends[block]]  # counted from the end of the block's
        voxel = np.array(np.unravel_index(inside, label.shape)) + np.array([place.records[block]["extent"][0], 0, 0])
        start = np.clip(voxel - extent // 2, 0, shape - extent)
    z, y, x = ((int(first), int(first + edge)) for first, edge in zip(start, extent, strict=True))
    return z, y, x
