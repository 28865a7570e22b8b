"""RTSTRUCT: contours to the voxels whose centres lie inside, or a refusal with one line."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.path
import numpy as np
import pydicom
import pytest
from scipy import ndimage

import builders
from builders import AFFINE, EXPECTED, OPTIONS, s6, set_all
from teravox import contours, geometry, rtstruct, segments
from teravox.errors import RejectedCase

LABELS = [{"name": "a", "value": 1}, {"name": "b", "value": 2}]
SHAPE = EXPECTED.shape  # 10 columns, 8 rows and 6 slices
Points = Sequence[Sequence[float]]


@pytest.fixture(scope="module")
def source() -> list[pydicom.Dataset]:
    return s6([set_all(PatientID="x")])


def at(points: Points, height: float = 2) -> list[tuple[float, float, float]]:
    """(column, row) in voxels of a slice -> mm, LPS."""
    return [(0.7 * column, 0.5 * row, 2 * height) for column, row in points]


def box(low: float, high: float, other: tuple[float, float] | None = None) -> Points:
    """A square from `low` to `high` in columns, and in rows unless `other` says otherwise."""
    first, last = other or (low, high)
    return [(low, first), (high, first), (high, last), (low, last)]


def read(
    folder: Path,
    data: pydicom.Dataset,
    labels: list[dict[str, Any]] = LABELS,
    frame: str = "",
    instances: dict[str, int] | None = None,
    **options: Any,
) -> segments.Labelled:
    data.save_as(folder / "rt.dcm", enforce_file_format=True)
    return rtstruct.read_structures(folder / "rt.dcm", SHAPE, AFFINE, labels, frame, {**OPTIONS, **options}, instances)


def refused(folder: Path, data: pydicom.Dataset, words: str, **others: Any) -> None:
    with pytest.raises(RejectedCase, match=words) as caught:
        read(folder, data, **others)
    assert str(caught.value).startswith(str(folder))
    assert len(str(caught.value).splitlines()) == 1


def sliced(label: np.ndarray) -> np.ndarray:
    """(x, y, z) in RAS -> (slice, row, column) as DICOM counts them."""
    return label[::-1, ::-1].transpose(2, 1, 0)


# The rule


def test_a_square_through_centres_and_a_hole_in_it(tmp_path: Path, source: list[pydicom.Dataset]) -> None:  # A21
    outer, hole, island = at(box(1, 7)), at(box(3, 5)), at(box(3.6, 4.4))
    expected = np.zeros((6, 8, 10), np.uint8)
    expected[2, 1:7, 1:7] = 1
    expected[2, 3:5, 3:5] = 0
    for kind in rtstruct.PLANAR:
        assert np.count_nonzero(read(tmp_path, builders.structure_set(source, {"a": [outer]}, kind)).label) == 36
        found = read(tmp_path, builders.structure_set(source, {"a": [hole, outer]}, kind))
        np.testing.assert_array_equal(sliced(found.label), expected)
        assert np.count_nonzero(found.label) == 32
        assert np.count_nonzero(read(tmp_path, builders.structure_set(source, {"a": [island, hole, outer]}, kind)).label) == 33
    keyhole = at([(1, 1), (7, 1), (7, 7), (1, 7), (1, 3), (3, 3), (3, 5), (5, 5), (5, 3), (3, 3), (1, 3)])
    np.testing.assert_array_equal(read(tmp_path, builders.structure_set(source, {"a": [keyhole]})).label, found.label)


def test_contours_that_do_not_contain_each_other(tmp_path: Path, source: list[pydicom.Dataset]) -> None:
    """United when CLOSED_PLANAR, cancelled when CLOSEDPLANAR_XOR; a contour given twice counts once, or not at all."""
    pair = [at(box(1, 4)), at(box(3, 6))]
    for kind, both, twice in (("CLOSED_PLANAR", 9 + 9 - 1, 9), ("CLOSEDPLANAR_XOR", 9 + 9 - 2, 0)):
        assert np.count_nonzero(read(tmp_path, builders.structure_set(source, {"a": pair}, kind)).label) == both
        assert np.count_nonzero(read(tmp_path, builders.structure_set(source, {"a": [pair[0], pair[0][::-1]]}, kind)).label) == twice
    leaving = [at(box(1, 6)), at(box(3, 6.4, (3, 5)))]  # its centres lie inside the other, its outline does not: no hole
    assert np.count_nonzero(read(tmp_path, builders.structure_set(source, {"a": leaving})).label) == 25 + 2
    leaving = [at(box(0.6, 6.2)), at(box(3, 6.4, (3, 5)))]
    assert np.count_nonzero(read(tmp_path, builders.structure_set(source, {"a": leaving})).label) == 36
    apart = {"a": [at(box(1, 3)), at(box(4, 6)), at(box(1, 3), 4)], "b": [at(box(1, 3), 3)]}
    found = read(tmp_path, builders.structure_set(source, apart))
    assert [np.count_nonzero(plane) for plane in sliced(found.label)] == [0, 0, 8, 4, 4, 0]
    assert "structure 1 (a): 1 slices between its contours have none and stay empty" in found.notes
    mixed = builders.structure_set(source, {"a": pair})
    mixed.ROIContourSequence[0].ContourSequence[1].ContourGeometricType = "CLOSEDPLANAR_XOR"
    refused(tmp_path, mixed, "mixes CLOSED_PLANAR and CLOSEDPLANAR_XOR")


def test_polygons_that_share_edges_share_no_voxel_and_leave_none_out() -> None:
    """A plane cut into triangles at centres and elsewhere: each voxel belongs to exactly one."""
    corners = np.array([(-1, -1), (-1, 9), (9, 9), (9, -1)], float)
    for middle in ((4, 4), (3, 6), (2.5, 4.25), (0, 0), (4, 4.0000000001)):
        triangles = [np.array([middle, corners[n], corners[(n + 1) % 4]]) for n in range(4)]
        total = sum(contours.rasterise(triangle, (9, 9), contours.Budget(10**9)).astype(int) for triangle in triangles)
        assert isinstance(total, np.ndarray)
        np.testing.assert_array_equal(total, 1)


@pytest.mark.parametrize("seed", range(20))
def test_polygons_against_a_point_in_polygon_test(seed: int) -> None:
    """Random polygons, folded and reaching outside; no centre lies on an edge."""
    random = np.random.default_rng(seed)
    polygon = random.uniform(-5, 25, (random.integers(3, 30), 2))
    if seed % 2:  # a star, that does not fold
        angles = np.sort(random.uniform(0, 2 * np.pi, 25))
        polygon = 10 + random.uniform(3, 9, (25, 1)) * np.column_stack([np.cos(angles), np.sin(angles)])
    centres = np.array(list(np.ndindex(20, 18)), float)
    crossings = np.zeros(len(centres), int)
    for (a0, a1), (b0, b1) in zip(polygon, np.roll(polygon, -1, axis=0), strict=True):
        spans = (a0 > centres[:, 0]) != (b0 > centres[:, 0])
        crossings += spans & (centres[:, 1] > a1 + (centres[:, 0] - a0) * (b1 - a1) / (b0 - a0))
    found = contours.rasterise(polygon, (20, 18), contours.Budget(10**9))
    np.testing.assert_array_equal(found.ravel(), crossings % 2 == 1)
    if seed % 2:
        np.testing.assert_array_equal(found.ravel(), matplotlib.path.Path(polygon, closed=False).contains_points(centres))
    np.testing.assert_array_equal(contours.combine([polygon], (20, 18), False, contours.Budget(10**9)), found)


@pytest.mark.parametrize("digits", [3, 4, 16])
def test_rounding_does_not_decide(tmp_path: Path, source: list[pydicom.Dataset], digits: int) -> None:
    """Squares through centres of a 0.7 mm grid, moved by the rounding of a text, stay what they are."""
    random = np.random.default_rng(1)
    off = 0.5 * 10.0**-digits
    for _ in range(20):
        square = [(x + random.uniform(-off, off), y + random.uniform(-off, off), z) for x, y, z in at(box(1, 6))]
        assert np.count_nonzero(read(tmp_path, builders.structure_set(source, {"a": [square]})).label) == 25


# Inverse: masks traced along the edges of their voxels


def trace(mask: np.ndarray) -> list[np.ndarray]:
    """Closed outlines (n, 2) of a mask along its voxels' edges, the mask on the left; holes have outlines of their own.

    Where two voxels touch at a corner only, the outline stays with the voxel it follows.
    """
    padded = np.pad(mask, 1)
    following: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for i, j in np.argwhere(padded):
        for di, dj, start, end in ((-1, 0, (0, 1), (0, 0)), (1, 0, (1, 0), (1, 1)), (0, -1, (0, 0), (1, 0)), (0, 1, (1, 1), (0, 1))):
            if not padded[i + di, j + dj]:
                following.setdefault((i + start[0], j + start[1]), []).append((i + end[0], j + end[1]))
    outlines = []
    while following:
        point = first = next(iter(following))
        before = (0, 0)
        outline = []
        while True:
            outline.append(point)
            # turning towards the inside keeps voxels that touch at a corner apart
            choices = sorted(following[point], key=lambda nxt: before[0] * (nxt[1] - point[1]) - before[1] * (nxt[0] - point[0]))
            nxt = choices[-1]
            following[point].remove(nxt)
            if not following[point]:
                del following[point]
            before, point = (nxt[0] - point[0], nxt[1] - point[1]), nxt
            if point == first:
                break
        outlines.append(np.array(outline) - 1.5)
    return outlines


def volume_of(seed: int, shape: tuple[int, int, int]) -> np.ndarray:
    """(x, y, z) bool: blobs with holes and islands in the holes, noise, a ring round a ring, nothing."""
    random = np.random.default_rng(seed)
    mask = ndimage.gaussian_filter(random.standard_normal(shape), (1, 1, 0)) > 0.1
    mask[:, :, 0] = random.random(shape[:2]) < 0.5
    away = np.maximum(*np.abs(np.indices(shape[:2]) - np.array(shape[:2]).reshape(2, 1, 1) // 2))
    mask[:, :, 1] = away % 2 == 0
    mask[:, :, -1] = False
    return mask


def turned_grid(angles: Sequence[float], spacing: Sequence[float], shape: tuple[int, int, int]) -> np.ndarray:
    a, b, c = angles
    x = np.array([[1, 0, 0], [0, np.cos(a), -np.sin(a)], [0, np.sin(a), np.cos(a)]])
    y = np.array([[np.cos(b), 0, np.sin(b)], [0, 1, 0], [-np.sin(b), 0, np.cos(b)]])
    z = np.array([[np.cos(c), -np.sin(c), 0], [np.sin(c), np.cos(c), 0], [0, 0, 1]])
    affine = np.eye(4)
    affine[:3, :3] = x @ y @ z * spacing
    affine[:3, 3] = -123.4, 56.7, -890.1
    return affine


GRIDS = {"axial": (0, 0, 0), "oblique": (0.3, -0.2, 0.4), "steep": (0.7, 0.5, -0.6)}


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("kind", rtstruct.PLANAR)
@pytest.mark.parametrize("grid", GRIDS)
def test_traced_masks_come_back(tmp_path: Path, source: list[pydicom.Dataset], grid: str, kind: str, axis: int) -> None:
    """Edges of voxels lie between centres, so the same masks must come back, voxel by voxel, across each axis of the grid."""
    drawn = volume_of(axis, (17, 14, 5))
    mask = np.moveaxis(drawn, 2, axis)
    affine = turned_grid(GRIDS[grid], (0.7, 0.9, 2.5), mask.shape)
    found = []
    for index in range(5):
        for outline in trace(drawn[:, :, index]):
            world = np.insert(outline, axis, index, axis=1) @ affine[:3, :3].T + affine[:3, 3]
            found.append((world * [-1, -1, 1]).tolist())
    random = np.random.default_rng(7)
    random.shuffle(found)
    data = builders.structure_set(source, {"a": found}, kind)
    data.save_as(tmp_path / "rt.dcm", enforce_file_format=True)
    label = rtstruct.read_structures(tmp_path / "rt.dcm", mask.shape, affine, LABELS, "", OPTIONS, None).label
    np.testing.assert_array_equal(label.astype(bool), mask)


# Planes


def test_planes_between_slices(tmp_path: Path, source: list[pydicom.Dataset]) -> None:
    """Planes half a step apart that move to one slice are united there: one inside the other is no hole."""
    data = builders.structure_set(source, {"a": [at(box(1, 7), 2), at(box(2, 5), 2.4), at(box(1, 3), 3.05)]})
    refused(tmp_path, data, "1 of 3 contours lie between slices, up to 0.40 of the step away")
    found = read(tmp_path, data, between_planes="nearest")
    assert [np.count_nonzero(plane) for plane in sliced(found.label)] == [0, 0, 36, 4, 0, 0]
    assert found.corrections == ("1 of 3 contours lay between slices and were moved to the nearer one, by up to 0.40 of the step",)
    near = builders.structure_set(source, {"a": [at(box(1, 7), 2.09)]})
    assert read(tmp_path, near).corrections == ()


def test_planes_outside_and_contours_that_are_not_planar(tmp_path: Path, source: list[pydicom.Dataset]) -> None:
    for height in (-1, 6, -0.6, 5.6, 4000):
        refused(tmp_path, builders.structure_set(source, {"a": [at(box(1, 7), height)]}), "outside the image", between_planes="nearest")
    tilted = [(x, y, z + 0.3 * (n % 2)) for n, (x, y, z) in enumerate(at(box(1, 7)))]
    refused(tmp_path, builders.structure_set(source, {"a": [at(box(1, 7)), at(box(1, 7), 3), tilted]}), "spans 0.15 slices")
    upright = [(2.8, y, z) for y, z in ((0, 0), (3, 0), (3, 8), (0, 8))]
    refused(tmp_path, builders.structure_set(source, {"a": [at(box(1, 7)), at(box(1, 7), 3), upright]}), "spans 4 slices")
    wide = read(tmp_path, builders.structure_set(source, {"a": [at(box(-3, 4)), at(box(1, 4), 3)]}))
    assert wide.corrections == ("1 of 2 contours reach beyond the edge of the image and were cut there",)
    assert [np.count_nonzero(plane) for plane in sliced(wide.label)] == [0, 0, 16, 9, 0, 0]
    whole = read(tmp_path, builders.structure_set(source, {"a": [at(box(-0.5, 9.5, (-0.5, 7.5)))]}))
    assert whole.label.sum() == 80
    assert whole.corrections == ()


# Names and overlap


def test_names(tmp_path: Path, source: list[pydicom.Dataset]) -> None:
    square = [at(box(1, 4))]
    data = builders.structure_set(source, {"GTV 1": square, "DOE^JOHN": square, "gtv 2": [at(box(5, 7))], "B": []})
    labels = [{"name": "a", "value": 7, "segment": r"gtv \d"}, {"name": "b", "value": 2, "segment": ""}, {"name": "c", "value": 3}]
    found = read(tmp_path, data, labels)
    assert found.notes[:3] == (
        "1 of 4 structures fit no label and were left out",
        "no structure fits label c",
        "1 of 3 structures that fit a label have no closed contour",
    )
    assert found.label.sum() == 7 * 13
    refused(tmp_path, data, "none of 4 structures fits a label", labels=[{"name": "x", "value": 1}])
    refused(tmp_path, data, "structure 1 fits labels a and b", labels=[labels[0], {"name": "b", "value": 2, "segment": ".*"}])


def test_overlap(tmp_path: Path, source: list[pydicom.Dataset]) -> None:
    data = builders.structure_set(source, {"b": [at(box(3, 6))], "a": [at(box(1, 5))], "A ": [at(box(2, 5))]})
    refused(tmp_path, data, "labels a and b overlap in 4 voxels")
    for labels, first in ((LABELS, 16), (LABELS[::-1], 12)):
        found = read(tmp_path, data, labels, overlap="priority")
        assert np.count_nonzero(found.label == 1) == first
        assert np.count_nonzero(found.label) == 21
        winner, loser = (label["name"] for label in labels)
        assert found.corrections == (f"4 voxels of label {loser} that overlap {winner} given to {winner}, which stands first",)


def test_points_and_open_contours_are_counted(tmp_path: Path, source: list[pydicom.Dataset]) -> None:
    data = builders.structure_set(source, {"a": [at(box(1, 4)), at([(1, 1)]), at([(1, 1), (2, 2), (3, 2)])]})
    for item, kind in zip(data.ROIContourSequence[0].ContourSequence, ("CLOSED_PLANAR", "POINT", "OPEN_PLANAR"), strict=True):
        item.ContourGeometricType = kind
    found = read(tmp_path, data)
    assert found.label.sum() == 9
    assert {f"1 contours of type {kind} were left out, since they hold no voxels" for kind in ("POINT", "OPEN_PLANAR")} <= set(found.notes)
    data.ROIContourSequence[0].ContourSequence[1].ContourGeometricType = "DOE"
    refused(tmp_path, data, "contour 2 of structure 1: ContourGeometricType is not the standard's")


# References


def test_references(tmp_path: Path, source: list[pydicom.Dataset]) -> None:
    frame, uids = source[0].FrameOfReferenceUID, [str(item.SOPInstanceUID) for item in source]
    instances = {uid: number for number, uid in enumerate(uids)}
    pair = {"a": [at(box(1, 4), 2), at(box(1, 4), 3)]}
    good = builders.structure_set(source, pair, references=[uids[2], uids[3]])
    assert read(tmp_path, good, frame=frame, instances=instances).notes == ("no structure fits label b",)
    assert "not known" in read(tmp_path, good, frame=frame).notes[-1]
    partly = builders.structure_set(source, pair, references=[uids[2]])
    assert "1 of 2 contours name no slice" in read(tmp_path, partly, frame=frame, instances=instances).notes[-1]
    wrong = builders.structure_set(source, pair, references=[uids[2], "1.2.3"])
    refused(tmp_path, wrong, "broken reference, 1 of 2 instances", frame=frame, instances=instances)
    assert read(tmp_path, wrong, frame=frame).label.sum() == 18
    swapped = builders.structure_set(source, pair, references=[uids[3], uids[2]])
    refused(tmp_path, swapped, "broken reference, a contour of structure 1 refers to an instance 1.0 slices", frame=frame, instances=instances)
    volume = dict.fromkeys(uids, 0)  # frames of one object: only that it is known
    assert read(tmp_path, swapped, frame=frame, instances=volume).label.sum() == 18
    series = pydicom.Dataset()
    series.ContourImageSequence = pydicom.Sequence([builders.item(ReferencedSOPInstanceUID=uid)[0] for uid in (uids[0], "1.2.3")])
    study = pydicom.Dataset()
    study.RTReferencedSeriesSequence = pydicom.Sequence([series])
    good.ReferencedFrameOfReferenceSequence[0].RTReferencedStudySequence = pydicom.Sequence([study])
    refused(tmp_path, good, "broken reference, 1 of 4 instances", frame=frame, instances=instances)


def test_another_frame_of_reference(tmp_path: Path, source: list[pydicom.Dataset]) -> None:
    """Refused, unless every contour names the very slice it lies on: then the slices decide, and it is a correction."""
    uids = [str(item.SOPInstanceUID) for item in source]
    instances = {uid: number for number, uid in enumerate(uids)}
    pair = {"a": [at(box(1, 4), 2), at(box(1, 4), 3)]}
    for references, known in (([], instances), (uids[2:3], instances), (uids[2:4], None), (uids[2:4], dict.fromkeys(uids, 0))):
        data = builders.structure_set(source, pair, references=references)
        refused(tmp_path, data, "frame of reference is another than the image's", frame="1.2.3", instances=known)
    found = read(tmp_path, builders.structure_set(source, pair, references=uids[2:4]), frame="1.2.3", instances=instances)
    assert found.label.sum() == 18
    assert found.corrections[0].startswith("its frame of reference is another than the image's")
    refused(tmp_path, builders.structure_set(source, pair, references=uids[3:5]), "broken reference", frame="1.2.3", instances=instances)


# Damaged and hostile files


def test_damaged_contours(tmp_path: Path, source: list[pydicom.Dataset]) -> None:
    def made(**changes: Any) -> pydicom.Dataset:
        data = builders.structure_set(source, {"a": [at(box(1, 4))]})
        for keyword, value in changes.items():
            setattr(data.ROIContourSequence[0].ContourSequence[0], keyword, value)
        return data

    def raw(text: bytes) -> None:
        content = (tmp_path / "rt.dcm").read_bytes()
        assert content.count(b"0.7\\0.5\\4") == 1
        (tmp_path / "rt.dcm").write_bytes(content.replace(b"0.7\\0.5\\4", text))

    refused(tmp_path, made(NumberOfContourPoints=5), "contour 1 of structure 1: 12 coordinates, expected 15")
    refused(tmp_path, made(ContourData=[1.0] * 11), "11 coordinates")
    refused(tmp_path, made(ContourData=[1.0] * 6, NumberOfContourPoints=2), r"2 point\(s\), expected at least 3")
    refused(tmp_path, made(ContourData=[]), "no number|at least 3")
    for text, words in (
        (b"0.7\\DOE\\4", "no number"),
        (b"0.7\\nan\\4", "not finite"),
        (b"0.7\\1e30", "no number|coordinates"),
        (b"inf\\0.5\\4", "finite"),
    ):
        read(tmp_path, made())
        raw(text.ljust(9))
        with pytest.raises(RejectedCase, match=words) as caught:
            rtstruct.read_structures(tmp_path / "rt.dcm", SHAPE, AFFINE, LABELS, "", OPTIONS, None)
        assert "DOE" not in str(caught.value)
    refused(tmp_path, made(ContourData=[1e30, *[1.0] * 11]), "beyond 1e[+]06 mm")
    data = made()
    data.ROIContourSequence[0].ReferencedROINumber = 9
    refused(tmp_path, data, "contours of structure 9, which StructureSetROISequence does not have")
    data = made()
    data.StructureSetROISequence.append(data.StructureSetROISequence[0])
    refused(tmp_path, data, "has structure 1 twice")
    refused(tmp_path, source[0], "not usable as a DICOM RTSTRUCT")
    read(tmp_path, made())
    content = (tmp_path / "rt.dcm").read_bytes()
    for kept in (140, 400, len(content) // 2, len(content) - 60):
        (tmp_path / "rt.dcm").write_bytes(content[:kept])
        with pytest.raises(RejectedCase):
            rtstruct.read_structures(tmp_path / "rt.dcm", SHAPE, AFFINE, LABELS, "", OPTIONS, None)


def test_work_is_bounded(tmp_path: Path, source: list[pydicom.Dataset], monkeypatch: pytest.MonkeyPatch) -> None:
    zigzag = at([(n % 2 * 9, 7 * (n // 2 % 2)) for n in range(1000)])
    nested = [at(box(1 + n / 1000, 7 - n / 1000)) for n in range(100)]
    for hostile in ([zigzag], nested):
        data = builders.structure_set(source, {"a": hostile})
        read(tmp_path, data)
        with monkeypatch.context() as patch:
            patch.setattr(rtstruct, "STEPS", 300_000 if len(hostile) == 1 else 12_000_000)
            refused(tmp_path, data, "too many, too long or fold over themselves")
    with monkeypatch.context() as patch:
        patch.setattr(rtstruct, "POINTS", 999)
        refused(tmp_path, builders.structure_set(source, {"a": [zigzag]}), "more than 999 points")
        refused(tmp_path, builders.structure_set(source, {"a": [at(box(1, 4))] * 250}), "more than 999 points")
    monkeypatch.setattr(rtstruct, "FILE_BYTES", 1000)
    refused(tmp_path, builders.structure_set(source, {"a": [zigzag]}), "expected a structure set of at most 1000")


# Real files


def two_slices(root: Path) -> tuple[tuple[int, int, int], np.ndarray, str, dict[str, int]]:
    """Grid in canonical order, frame of reference and instances of the two-slice CT, from its headers."""
    slices = [pydicom.dcmread(root / name) for name in ("ct_1.dcm", "ct_2.dcm")]
    affine = np.diag([*np.array(slices[0].PixelSpacing, float)[::-1], 5, 1.0])
    affine[:3, 3] = np.array(slices[0].ImagePositionPatient, float)
    blank = np.zeros((slices[0].Columns, slices[0].Rows, 2), bool)
    turned, grid = geometry.to_canonical(blank, geometry.LPS_FROM_RAS @ affine)
    return turned.shape, grid, str(slices[0].FrameOfReferenceUID), {str(item.SOPInstanceUID): number for number, item in enumerate(slices)}


ROI = [{"name": "first", "value": 1, "segment": "ROI-1"}]
VERDICTS = {
    "rt.dcm": "",
    "invalid_reference_rt.dcm": "broken reference, 3 of 5 instances",
    "non_existent_reference_rt.dcm": "broken reference, 1 of 3 instances",
}


@pytest.mark.parametrize("name", VERDICTS)
def test_real_structure_sets(shared: Path, name: str) -> None:
    """Each verdict; the voxels are those of a point-in-polygon test over the file's own points, which pass through no centre."""
    root = shared / "data/dicom/rtstruct_two_slices/mock_data"
    assert {path.name for path in root.glob("*rt.dcm")} == set(VERDICTS)
    shape, affine, frame, instances = two_slices(root)
    if VERDICTS[name]:
        with pytest.raises(RejectedCase, match=VERDICTS[name]):
            rtstruct.read_structures(root / name, shape, affine, ROI, frame, OPTIONS, instances)
        with pytest.raises(RejectedCase, match=r"lies at slice 2\.00, outside the image of slices 0 to 1"):
            rtstruct.read_structures(root / name, shape, affine, ROI, frame, OPTIONS, None)
        return
    found = rtstruct.read_structures(root / name, shape, affine, ROI, frame, OPTIONS, instances)
    assert found.corrections == (
        "its frame of reference is another than the image's, but each contour names the image's slice that it lies on: these decide",
    )
    with pytest.raises(RejectedCase, match="frame of reference"):
        rtstruct.read_structures(root / name, shape, affine, ROI, frame, OPTIONS, None)
    centres = np.array(list(itertools.product(range(shape[0]), range(shape[1]), [0])), float) @ affine[:3, :3].T + affine[:3, 3]
    inside = []
    for contour in pydicom.dcmread(root / name).ROIContourSequence[0].ContourSequence:
        points = np.array(contour.ContourData, float).reshape(-1, 3)
        np.testing.assert_allclose(points[:, 2], affine[2, 3])
        inside.append(matplotlib.path.Path(points[:, :2], closed=False).contains_points(centres[:, :2] * [-1, -1]).reshape(shape[:2]))
    outer, inner = inside
    assert (outer & inner).sum() == inner.sum() > 0
    np.testing.assert_array_equal(found.label[:, :, 0], outer & ~inner)
    assert not found.label[:, :, 1].any()


def test_contours_that_are_lost_are_no_empty_label(tmp_path: Path, source: list[pydicom.Dataset]) -> None:
    """The sequence is mandatory (PS3.3 section C.8.8.6), though it may be empty."""
    data = builders.structure_set(source, {"a": [at(box(1, 4))]})
    del data.ROIContourSequence
    refused(tmp_path, data, "ROIContourSequence is missing")
    data.ROIContourSequence = []
    assert not read(tmp_path, data).label.any()
