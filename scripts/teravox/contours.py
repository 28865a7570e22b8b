"""Polygons in a plane of voxels to the voxels whose centres lie inside.

Points are (n, 2) in voxels of an array (n, m), first index first; a voxel's centre has whole coordinates.
"""

import numpy as np

SNAP_VOXELS = 2e-3  # a contour traced through centres comes back this near to them: 3 decimals of a mm are 0.002 of a voxel of 0.25 mm
LEAVE_VOXELS = 0.05  # a hole may share a part of its outline with the structure's, so by rounding it can leave it a little
CONTOUR_WORK = 100_000  # what a contour costs beside its size, in steps of about a nanosecond


class Budget:
    """Steps of work that a file may cost: one of a few megabytes can hold contours that would take hours."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def spend(self, steps: int) -> None:
        """Raises ValueError when nothing is left."""
        self.left -= steps
        if self.left < 0:
            raise ValueError("its contours are too many, too long or fold over themselves too often")


def snap(points: np.ndarray) -> np.ndarray:
    """Coordinates that miss a centre by rounding are put on it, so that the rule for edges decides and not the rounding."""
    nearest = np.rint(points)
    return np.where(np.abs(points - nearest) <= SNAP_VOXELS, nearest, points)


def _crossings(polygon: np.ndarray, low: np.ndarray, high: np.ndarray, rows: np.ndarray, budget: Budget) -> tuple[np.ndarray, np.ndarray]:
    """(k,) index into `rows` and (k,) second coordinate of every crossing of an edge with a row.

    rows : first coordinate of each row, ascending; low, high : (n,) the rows that each edge crosses are low to high - 1.
    """
    counts = high - low
    budget.spend(50 * int(counts.sum()))
    edge = np.repeat(np.arange(len(polygon)), counts)
    row = np.arange(len(edge)) - np.repeat(np.cumsum(counts) - counts, counts) + low[edge]
    (a0, a1), (b0, b1) = polygon[edge].T, np.roll(polygon, -1, axis=0)[edge].T
    return row, a1 + (rows[row] - a0) * (b1 - a1) / (b0 - a0)


def _bounds(polygon: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(n,) lower and upper first coordinate of each edge. An edge crosses the rows from its lower end on, without its upper end."""
    start, end = polygon[:, 0], np.roll(polygon[:, 0], -1)
    return np.minimum(start, end), np.maximum(start, end)


def rasterise(polygon: np.ndarray, shape: tuple[int, int], budget: Budget) -> np.ndarray:
    """(n, m) bool: the voxels of an array of `shape` whose centres lie inside a closed polygon, by the even-odd rule.

    A centre on an edge belongs to the polygon on the edge's side of higher indices and not to the one on the other side: a
    square through the centres 0 and 6 holds 6 x 6, and polygons that share an edge share no voxel and leave none out. Each edge
    switches, in the rows it crosses, everything from its crossing on; a polygon may reach outside the array.
    """
    count, columns = shape
    budget.spend(CONTOUR_WORK + 10 * count * columns)
    low, high = (np.clip(np.ceil(bound), 0, count).astype(np.int64) for bound in _bounds(polygon))
    row, crossing = _crossings(polygon, low, high, np.arange(count), budget)
    column = np.clip(np.ceil(crossing), 0, columns).astype(np.int64)
    switches = np.bincount(row * (columns + 1) + column, minlength=count * (columns + 1)).reshape(count, columns + 1)
    return (np.cumsum(switches[:, :columns], axis=1) & 1).astype(bool)


def _inside(polygon: np.ndarray, points: np.ndarray, budget: Budget) -> np.ndarray:
    """(k,) bool: which points (k, 2) lie inside a closed polygon, by the rule of `rasterise`."""
    points = points[np.argsort(points[:, 0])]
    low, high = (np.searchsorted(points[:, 0], bound, side="left") for bound in _bounds(polygon))
    row, crossing = _crossings(polygon, low, high, points[:, 0], budget)
    return np.bincount(row[crossing <= points[row, 1]], minlength=len(points)) % 2 == 1


def _within(inner: np.ndarray, outer: np.ndarray, budget: Budget) -> bool:
    """Whether no corner of `inner` leaves `outer` by more than about LEAVE_VOXELS: one of four points around it lies inside."""
    budget.spend(CONTOUR_WORK)
    near = np.zeros(len(inner), bool)
    order = np.argsort(inner[:, 0], kind="stable")
    for shift in ((-1, -1), (-1, 1), (1, -1), (1, 1)):
        near |= _inside(outer, inner[order] + np.array(shift) * LEAVE_VOXELS, budget)
    return bool(near.all())


def _box(points: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """(2, 2) first and last + 1 index, of both axes, of the part of an array of `shape` that can hold the polygon's voxels."""
    return np.clip([np.floor(points.min(axis=0)), np.ceil(points.max(axis=0)) + 1], 0, shape).astype(int)


def _window(box: np.ndarray, origin: np.ndarray | int = 0) -> tuple[slice, slice]:
    (a, c), (b, d) = box - origin
    return slice(a, b), slice(c, d)


def combine(polygons: list[np.ndarray], shape: tuple[int, int], exclusive: bool, budget: Budget) -> np.ndarray:
    """The voxels (n, m) of one structure in one plane. Raises ValueError when the budget is spent.

    exclusive : what an odd number of polygons covers (CLOSEDPLANAR_XOR); otherwise polygons are united, but one that lies wholly
    inside an odd number of others is a hole in them (an outline, a hole in it, an island in the hole). A repeated polygon
    counts once, unless exclusive. Polygons are taken as they are, see `snap`.
    """
    mask = np.zeros(shape, bool)
    boxes = np.array([_box(polygon, shape) for polygon in polygons])
    parts = [
        rasterise(polygon - box[0], (int(box[1, 0] - box[0, 0]), int(box[1, 1] - box[0, 1])), budget)
        for polygon, box in zip(polygons, boxes, strict=True)
    ]
    if exclusive:
        for box, part in zip(boxes, parts, strict=True):
            mask[_window(box)] ^= part
        return mask
    depths = _depths(polygons, boxes, parts, budget)
    for number in sorted(depths, key=lambda number: depths[number]):
        window = _window(boxes[number])
        mask[window] = mask[window] & ~parts[number] if depths[number] % 2 else mask[window] | parts[number]
    return mask


def _area(points: np.ndarray) -> float:
    a, b = (points - points[0]).T
    return float(abs(a @ np.roll(b, -1) - b @ np.roll(a, -1))) / 2


def _depths(polygons: list[np.ndarray], boxes: np.ndarray, parts: list[np.ndarray], budget: Budget) -> dict[int, int]:
    """Number of each polygon that holds a voxel -> how many others it lies wholly inside; of repeated ones only the first is in it."""
    depths: dict[int, int] = {}
    for number in sorted((n for n, part in enumerate(parts) if part.any()), key=lambda n: -_area(polygons[n])):
        kept = np.array(list(depths), int)
        around = (boxes[kept, 0] <= boxes[number, 0]).all(axis=1) & (boxes[kept, 1] >= boxes[number, 1]).all(axis=1)
        depth = 0
        for other in kept[around]:
            budget.spend(10 * parts[number].size)
            covered = parts[other][_window(boxes[number], boxes[other, 0])]
            if (parts[number] & ~covered).any() or not _within(polygons[number], polygons[other], budget):
                continue
            if (
                covered.all() == parts[number].all()
                and np.array_equal(boxes[number], boxes[other])
                and _within(polygons[other], polygons[number], budget)
            ):
                break
            depth += 1
        else:
            depths[number] = depth
    return depths
