"""The pictures: their planes and colours against arrays whose answer is known, odd inputs, and equal bytes for equal inputs."""

import io
import math
import warnings
from typing import Any

import matplotlib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from matplotlib.figure import Figure
from PIL import Image

from teravox import figures, planes

LABELS = [{"name": "liver", "value": 1}, {"name": "spleen", "value": 2}, {"name": "left kidney", "value": 4}]
AFFINE = np.diag([2.0, 1.0, 4.0, 1.0])


def pixels(png: bytes) -> np.ndarray:
    image = Image.open(io.BytesIO(png))
    assert image.format == "PNG" and not image.info.get("Software")
    return np.array(image.convert("RGB")).astype(int)


def shows(png: bytes, colour: str, rows: slice = slice(None), columns: slice = slice(None)) -> bool:
    wanted = 255 * np.array(matplotlib.colors.to_rgb(colour))
    return bool((np.abs(pixels(png)[rows, columns] - wanted).max(axis=-1) < 3).any())


def small_case() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    image = generator.normal(size=(20, 30, 12)).astype(np.float32)
    reference = np.zeros(image.shape, np.uint8)
    reference[3:14, 8:20, 2:9] = 1
    reference[15:18, 12:16, 4:7] = 4
    return image, reference, np.roll(reference, 2, 1)


def history(n: int) -> list[dict[str, Any]]:
    return [{"step": 10 * i, "dice_loss": 1 / (i + 1), "cross_entropy": 2 / (i + 1), "learning_rate": 0.01} for i in range(n)]


def table() -> list[dict[str, Any]]:
    rows = []
    for i in range(12):
        for label in ("liver", "spleen"):
            value = math.nan if (i, label) in [(3, "spleen"), (5, "spleen")] else 0.95 - 0.01 * i
            subset = "test" if i % 4 == 0 else "validation"
            rows.append({"case": str(i), "set": subset, "label": label, "space": "native", "dice": value, "hd95": 30 * (1 - value)})
            rows.append({**rows[-1], "space": "isotropic", "dice": 0.01})
    return rows


def tick_texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].get_yticklabels()]


def test_planes_are_in_radiological_convention() -> None:
    """Each voxel holds its own world corner: the picture's left column is R, the top row A or S, sagittal left A."""
    volume = np.arange(3 * 4 * 5).reshape(3, 4, 5)
    axial, coronal, sagittal = planes.planes_of(volume, (1, 2, 3))
    assert (axial.shape, coronal.shape, sagittal.shape) == ((4, 3), (5, 3), (5, 4))
    assert axial[0, 0] == volume[2, 3, 3] and axial[-1, -1] == volume[0, 0, 3]
    assert axial[0, -1] == volume[0, 3, 3]
    assert coronal[0, 0] == volume[2, 2, 4] and coronal[0, -1] == volume[0, 2, 4]
    assert sagittal[0, 0] == volume[1, 3, 4] and sagittal[-1, -1] == volume[1, 0, 0] and sagittal[0, -1] == volume[1, 0, 4]


def test_chosen_voxel() -> None:
    empty = np.zeros((9, 8, 7), np.int16)
    reference, prediction = empty.copy(), empty.copy()
    spacing = np.ones(3)
    assert planes.chosen_voxel(empty, empty, spacing, [1, 4]) == (4, 4, 3)
    prediction[1:4, 1:4, 1:4] = 4
    assert planes.chosen_voxel(reference, prediction, spacing, [1, 4]) == (2, 2, 2)
    reference[5, 5, 5] = 1
    assert planes.chosen_voxel(reference, prediction, spacing, [1, 4]) == (5, 5, 5)
    reference[0:2, 7, 0] = 4
    assert planes.chosen_voxel(reference, prediction, spacing, [1, 4]) == (0, 7, 0), "two voxels, both as near: the first"
    reference[:, :, 6] = 3
    assert planes.chosen_voxel(reference, prediction, spacing, [1, 4]) == (0, 7, 0), "a value that is no label does not count"
    assert planes.chosen_voxel(reference, prediction, spacing, []) == (4, 4, 3)


@given(hnp.arrays(bool, st.tuples(*[st.integers(1, 6)] * 3)), st.tuples(*[st.floats(0.3, 5)] * 3))
@settings(max_examples=60, deadline=None)
def test_chosen_voxel_is_in_the_label_and_nearest_to_its_centroid(mask: np.ndarray, spacing: tuple[float, float, float]) -> None:
    mask[0, 0, 0] = True
    found = planes.chosen_voxel(mask.astype(np.uint8), np.zeros_like(mask, np.uint8), np.array(spacing), [1])
    points = np.argwhere(mask) * spacing
    assert mask[found]
    nearest = np.linalg.norm(points - points.mean(axis=0), axis=1).min()
    assert math.dist(np.array(found) * spacing, points.mean(axis=0)) == pytest.approx(nearest, abs=1e-9)


def test_window() -> None:
    assert planes.window_of([np.arange(101), np.arange(101).reshape(1, -1)]) == pytest.approx((1, 99), abs=0.1)
    assert planes.window_of([np.full((3, 3), 7)]) == (6, 8)
    low, high = planes.window_of([np.full((3, 3), 1e30)])
    assert low < high
    assert planes.window_of([np.array([[0.0] * 999 + [5.0]])]) == (0, 5)
    assert planes.window_of([np.array([[math.nan, math.inf]])]) == (0, 1)
    assert planes.window_of([np.array([[math.nan, 1.0, 3.0]])]) == pytest.approx((1.02, 2.98))
    low, high = planes.window_of([np.array([[-32768, 32767]], np.int16)])
    assert low < -30000 and high > 30000


def test_case_picture_shows_labels_by_their_value() -> None:
    """Values 1 and 4 are drawn in the colours of 'liver' and 'left kidney'; 'spleen', which is not there, only in the legend."""
    image, reference, prediction = small_case()
    picture = figures.case_picture(image, reference, prediction, AFFINE, LABELS, "one case")
    height, width = pixels(picture).shape[:2]
    assert width == 900
    panels = slice(0, height - 80)
    orange, sky, green = figures.ON_DARK[:3]
    assert shows(picture, orange, panels) and shows(picture, green, panels) and not shows(picture, sky, panels)
    assert shows(picture, sky)
    assert shows(picture, green, panels, slice(0, 150)), "high x is the patient's right, which is on the left"
    assert not shows(picture, green, panels, slice(200, 300))


@pytest.mark.parametrize("empty", ["reference", "prediction"])
def test_case_picture_draws_each_of_the_two(empty: str) -> None:
    image, reference, prediction = small_case()
    reference, prediction = (np.zeros_like(m) if empty == name else m for name, m in [("reference", reference), ("prediction", prediction)])
    picture = figures.case_picture(image, reference, prediction, AFFINE, LABELS, "one case")
    assert shows(picture, figures.ON_DARK[0], slice(0, 300))


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 9, 8), (9, 1, 8), (9, 8, 1), (40, 2, 2)])
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.float64, np.bool_])
def test_case_picture_of_thin_and_constant_volumes(shape: tuple[int, int, int], dtype: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        labels = np.ones(shape, np.uint8)
        labels[: shape[0] // 2] = 0
        picture = figures.case_picture(np.ones(shape, dtype), labels, np.zeros_like(labels), AFFINE, LABELS, "")
    assert pixels(picture).shape[1] == 900


def test_case_picture_of_odd_values() -> None:
    image, reference, prediction = small_case()
    image[:, :, :6] = np.nan
    image[0, 0, 8], image[0, 1, 8] = np.inf, -np.inf
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figures.case_picture(image, reference, prediction, AFFINE, LABELS, "price: $1 and $2 $")
        figures.case_picture(np.full_like(image, np.nan), reference * 0, prediction * 0, AFFINE, [], "t" * 200)
        many = [{"name": "a rather long name of an organ " * 2, "value": value} for value in range(1, 16)]
        figures.case_picture(image, reference, prediction, AFFINE, many, "many labels", window=(-1.0, 1.0))


def test_case_picture_refuses_other_shapes() -> None:
    image, reference, prediction = small_case()
    with pytest.raises(ValueError, match="prediction has shape"):
        figures.case_picture(image, reference, prediction[1:], AFFINE, LABELS, "")


def test_case_picture_keeps_proportions() -> None:
    """A label that is a cube in mm is as wide as high in each plane, whatever the voxels."""
    image = np.zeros((30, 60, 15))
    reference = np.zeros(image.shape, np.uint8)
    reference[10:20, 20:40, 5:10] = 1  # 20 mm each way
    figure = figures._case_figure(image, reference, reference * 0, AFFINE, LABELS, "", None)
    for axes in figure.axes:
        frame = axes.get_window_extent()
        (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
        assert frame.width / (right - left) == pytest.approx(frame.height / (top - bottom), rel=1e-6)
        (path,) = axes.collections[0].get_paths()
        assert np.ptp(path.vertices, axis=0) == pytest.approx([20, 20])


def test_moving_mean() -> None:
    values = np.array([1.0, 2.0, 6.0, math.nan, 4.0])
    assert figures.moving_mean(values, 3) == pytest.approx([1.5, 3, 4, 5, 4])
    assert figures.moving_mean(values, 1) == pytest.approx(values, nan_ok=True)
    assert figures.moving_mean(np.full(2, 5.0), 21) == pytest.approx([5, 5])
    assert np.isnan(figures.moving_mean(np.full(3, math.nan), 3)).all()
    assert [figures.smoothing_window(n) for n in ([], [1], [100, 7], [1000])] == [1, 1, 5, 51]


@pytest.mark.parametrize("n", [0, 1, 2, 300])
def test_learning_curves_of_any_length(n: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        picture = figures.learning_curves({f"fold {k}": history(n) for k in range(9)})
    assert pixels(picture).shape[1] == 900
    if n:
        assert shows(picture, figures.ON_WHITE[-1])


def test_learning_curves_with_gaps_and_without_folds() -> None:
    rows = history(40)
    rows[3]["dice_loss"], rows[4]["cross_entropy"] = None, math.nan
    assert pixels(figures.learning_curves({"0": rows})).size
    assert pixels(figures.learning_curves({})).size


def test_boxplots_count_what_they_show_and_leave_out() -> None:
    figure = figures._boxplots_figure(table(), "dice", ["spleen", "liver"], "native")
    assert tick_texts(figure) == ["spleen\nvalidation 7 (2 excluded)\ntest 3", "liver\nvalidation 9\ntest 3"]
    dots = [np.asarray(line.get_xdata(), float) for line in figure.axes[0].lines if line.get_marker() in ("o", "D")]
    assert [len(values) for values in dots] == [7, 3, 9, 3]
    assert min(values.min() for values in dots) == pytest.approx(0.84), "rows of the other space are not shown"
    assert dots[3].tolist() == pytest.approx([0.95, 0.91, 0.87])


@pytest.mark.parametrize(("metric", "space"), [("dice", "native"), ("hd95", "native"), ("dice", "elsewhere")])
def test_boxplots_of_odd_tables(metric: str, space: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pixels(figures.boxplots(table(), metric, ["liver", "no such label"], space)).shape[1] == 900
        figures.boxplots(table()[:1], metric, ["liver"], space)
        figures.boxplots([{**one, metric: math.nan} for one in table()], metric, ["liver"], space)
        figures.boxplots([{**one, "set": "other"} for one in table()], metric, ["liver"], space)
        figures.boxplots([], metric, [], space)


def test_equal_inputs_give_equal_bytes_whatever_the_settings_around() -> None:
    def all_three() -> list[bytes]:
        case = figures.case_picture(*small_case(), AFFINE, LABELS, "one case")
        return [case, figures.learning_curves({"0": history(30)}), figures.boxplots(table(), "dice", ["liver", "spleen"])]

    first = all_three()
    with matplotlib.rc_context({"font.size": 20, "lines.linewidth": 7, "savefig.facecolor": "red", "axes.grid": False}):
        assert all_three() == first
        assert matplotlib.rcParams["font.size"] == 20
