"""The schedule, augmentation, determinism and the model on disk."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import teravox.network  # noqa: F401, isort: skip
import tensorflow as tf

from teravox import augment, files, model, training
from teravox.errors import UserError
from teravox.feed import case_at
from teravox.network.unet import UNet
from teravox.normalise import pad_to_multiple

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
RNG = np.random.default_rng(0)
CASES = [f"c{i}" for i in range(7)]
OPTIONS = {"steps": 4, "learning_rate": 0.01, "weight_decay": 1e-4, "average": 0.9}
UNIT = np.ones(3)
OFF = {"flip": [], "rotate_degrees": 0, "scale": 0, "intensity": 0}


def test_the_learning_rate_is_half_a_cosine() -> None:
    found = [training.learning_rate_at(step, 100, 0.02) for step in range(100)]
    assert found[0] == 0.02 and found[50] == pytest.approx(0.01) and 0 < found[99] < 1e-4
    assert found == sorted(found, reverse=True)


def pair(shape: tuple[int, int, int] = (9, 10, 11)) -> tuple[np.ndarray, np.ndarray]:
    """An image whose first channel is its own class map, so that the two can be compared after any change."""
    classes = np.zeros(shape, np.uint8)
    classes[2:7, 3:8, 1:5] = 1
    classes[4:6, 5:9, 4:9] = 2
    return np.stack([classes.astype(np.float32), RNG.normal(0, 1, shape).astype(np.float32)], axis=-1), classes


@pytest.mark.parametrize("seed", range(4))
def test_nothing_changes_when_everything_is_off(seed: int) -> None:
    image, classes = pair()
    found, labels = augment.augment(image, classes, UNIT, OFF, np.random.default_rng(seed))
    np.testing.assert_array_equal(found, image)
    np.testing.assert_array_equal(labels, classes)
    assert found.dtype == np.float32 and labels.dtype == classes.dtype


@pytest.mark.parametrize("seed", range(4))
def test_intensity_is_a_line_per_channel(seed: int) -> None:
    image, classes = pair()
    found, labels = augment.augment(image, classes, UNIT, {**OFF, "intensity": 0.2}, np.random.default_rng(seed))
    np.testing.assert_array_equal(labels, classes)
    for c in range(2):
        gain, shift = np.polyfit(image[..., c].ravel(), found[..., c].ravel(), 1)
        assert abs(gain - 1) <= 0.2 and abs(shift) <= 0.2 and (gain, shift) != (1, 0)
        np.testing.assert_allclose(found[..., c], gain * image[..., c] + shift, atol=1e-5)


def test_flips_take_image_and_label_along_the_named_axis() -> None:
    image, classes = pair()
    for name, axis in (("z", 0), ("y", 1), ("x", 2)):
        seen = set()
        for seed in range(12):
            found, labels = augment.augment(image, classes, UNIT, {**OFF, "flip": [name]}, np.random.default_rng(seed))
            np.testing.assert_array_equal(found[..., 0], labels)
            flipped = bool((labels == np.flip(classes, axis)).all())
            np.testing.assert_array_equal(found, np.flip(image, axis) if flipped else image)
            seen.add(flipped)
        assert seen == {True, False}


def test_rotation_and_scale_keep_image_and_label_together() -> None:
    image, classes = pair((24, 24, 24))
    classes[:] = 0
    classes[6:18, 8:16, 5:20] = 1
    image[..., 0] = classes
    changed = 0
    for seed in range(8):
        found, labels = augment.augment(image, classes, UNIT, {**OFF, "rotate_degrees": 20, "scale": 0.2}, np.random.default_rng(seed))
        assert set(np.unique(labels)) <= {0, 1}
        np.testing.assert_array_equal(found[..., 0] > 0.75, (labels == 1) & (found[..., 0] > 0.75))
        np.testing.assert_array_equal(found[..., 0] < 0.1, (labels == 0) & (found[..., 0] < 0.1))
        changed += bool((labels != classes).any())
    assert 0 < changed < 8


def test_on_voxels_that_are_no_cubes_the_body_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ball stays a ball of the same volume, whatever the spacing; turned as voxels it would become an egg."""
    monkeypatch.setattr(augment, "SPATIAL_PROBABILITY", 1.1)
    spacing = np.array([2.0, 1, 0.5])
    places = np.stack(np.meshgrid(*[(np.arange(n) - (n - 1) / 2) * s for n, s in zip((16, 32, 64), spacing, strict=True)], indexing="ij"))
    ball = (np.linalg.norm(places, axis=0) < 11).astype(np.uint8)

    def overlap(seed: int, said: np.ndarray) -> float:
        rng = np.random.default_rng(seed)
        _, found = augment.augment(ball[..., None].astype(np.float32), ball, said, {**OFF, "rotate_degrees": 90}, rng)
        return 2 * int((found & ball).sum()) / int(found.sum() + ball.sum())

    assert min(overlap(seed, spacing) for seed in range(4)) > 0.94
    assert min(overlap(seed, UNIT) for seed in range(4)) < 0.8


def test_a_quarter_turn_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(augment, "SPATIAL_PROBABILITY", 1.1)
    monkeypatch.setattr(augment, "rotation", lambda angles: np.array([[1.0, 0, 0], [0, 0, -1], [0, 1, 0]]))
    image, classes = pair((5, 8, 8))
    found, labels = augment.augment(image, classes, UNIT, {**OFF, "rotate_degrees": 90}, np.random.default_rng(0))
    turned = [k for k in (1, 3) if (labels == np.rot90(classes, k, (1, 2))).all()]
    assert len(turned) == 1
    np.testing.assert_allclose(found, np.rot90(image, turned[0], (1, 2)), atol=1e-5)


def test_an_option_does_not_reshuffle_the_others() -> None:
    image, classes = pair()
    with_flip = augment.augment(image, classes, UNIT, {**OFF, "flip": ["x"], "intensity": 0.3}, np.random.default_rng(5))[0]
    without = augment.augment(image, classes, UNIT, {**OFF, "intensity": 0.3}, np.random.default_rng(5))[0]
    assert (with_flip == without).all() or (with_flip == without[:, :, ::-1]).all()


def trainer(**options: Any) -> training.Trainer:
    return training.Trainer(UNet(2, 3, 2, 2), {**OPTIONS, **options}, 3)


def example(case: str, volume: tuple[np.ndarray, np.ndarray]) -> tuple[tf.Tensor, np.ndarray, np.ndarray, np.ndarray]:
    image, classes = (pad_to_multiple(array, 2)[None] for array in volume)
    return tf.constant(case), image, classes.astype(np.int32), np.array(volume[1].shape, np.int32)


def rows(used: training.Trainer, volumes: dict[str, tuple[np.ndarray, np.ndarray]]) -> list[dict[str, Any]]:
    cases = [case_at(CASES[:3], step, 1, 0) for step in range(used.options["steps"])]
    return list(training.train(used, (example(case, volumes[case]) for case in cases)))


def test_steps_run_through_the_schedule_and_learn() -> None:
    volumes = {case: pair((5 + i, 8, 7)) for i, case in enumerate(CASES[:3])}  # each of its own shape
    used = trainer(steps=60, learning_rate=0.02)
    found = rows(used, volumes)
    assert [row["step"] for row in found] == list(range(1, 61))
    assert [row["case"] for row in found] == [case_at(CASES[:3], step, 1, 0) for step in range(60)]
    assert found[0]["learning_rate"] == 0.02
    assert found[-1]["dice_loss"] + found[-1]["cross_entropy"] < 0.5 * (found[0]["dice_loss"] + found[0]["cross_entropy"])
    assert used.compiled.experimental_get_tracing_count() == 1


def test_the_average_is_that_of_the_weights_and_can_be_switched_off() -> None:
    image, classes = pair((4, 4, 4))
    used, plain = trainer(average=0.3), trainer(average=0.0)
    average = UNet(2, 3, 2, 2).initial_weights(3)
    for number in range(4):
        for one in (used, plain):
            one.step(image[None], classes[None].astype(np.int32), np.array([4, 4, 4], np.int32), number)
        decay = min(0.3, (1 + number) / (10 + number))
        average = {name: decay * value + (1 - decay) * used.weights[name].numpy() for name, value in average.items()}
    for name, value in used.result().items():
        np.testing.assert_allclose(value, average[name], rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(plain.result()[name], used.weights[name].numpy())


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_stops_with_the_case_named(value: float) -> None:
    volumes = {case: pair((4, 4, 4)) for case in CASES[:3]}
    volumes["c1"][0][1, 1, 1, 0] = value
    expected = next(step for step in range(4) if case_at(CASES[:3], step, 1, 0) == "c1") + 1
    with pytest.raises(UserError, match=f"not finite at step {expected} on case 'c1'"):
        rows(trainer(), volumes)


def test_a_gradient_that_is_not_finite_stops_too(monkeypatch: pytest.MonkeyPatch) -> None:
    used = trainer(steps=1)
    monkeypatch.setattr(used, "step", lambda *_: (0.5, 0.5, np.nan, 0.01))
    with pytest.raises(UserError, match="its gradient is not finite at step 1 on case"):
        rows(used, {case: pair((4, 4, 4)) for case in CASES[:3]})


def test_a_training_goes_on_at_the_step_it_is_told() -> None:
    volumes = {case: pair((4, 4, 4)) for case in CASES[:3]}
    found = list(training.train(trainer(), [example("c1", volumes["c1"])] * 2, first=2))
    assert [row["step"] for row in found] == [3, 4]
    assert found[0]["learning_rate"] == training.learning_rate_at(2, 4, 0.01)


TRAIN = """
import os, sys
os.sched_setaffinity(0, {int(core) for core in sys.argv[2].split(",")})
sys.path.insert(0, sys.argv[1])
import teravox.network
from teravox.network import runtime
from teravox.network.unet import UNet
facts = runtime.start(2)
import json
import numpy as np
import tensorflow as tf
from teravox import model, training
rng = np.random.default_rng(0)
volumes = {f"c{i}": (rng.normal(0, 1, (24, 20, 28, 2)).astype("f4"), rng.integers(0, 3, (24, 20, 28)).astype("u1")) for i in range(2)}
options = {"steps": 3, "learning_rate": 0.01, "weight_decay": 1e-4, "average": 0.9}
used = training.Trainer(UNet(2, 3, 8, 3), options, 5)
examples = [(tf.constant(case), image[None], classes[None].astype("i4"), np.array(classes.shape, "i4")) for case, (image, classes) in volumes.items()]
rows = list(training.train(used, [examples[step % 2] for step in range(3)]))
print(json.dumps([facts, model.weights_digest(used.result()), rows]))
"""


def test_processes_and_allowed_cores_change_no_bit() -> None:
    cores = sorted(os.sched_getaffinity(0)) if len(os.sched_getaffinity(0)) > 1 else list(range(min(2, os.cpu_count() or 1)))
    if len(cores) < 2:
        pytest.skip("one core only")
    found = []
    for allowed in (cores[:2], cores[:2], cores[:1]):
        arguments = [sys.executable, "-c", TRAIN, str(SCRIPTS), ",".join(map(str, allowed))]
        done = subprocess.run(arguments, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": str(len(allowed))})
        assert done.returncode == 0, done.stderr
        facts, *result = json.loads(done.stdout.splitlines()[-1])
        assert facts["threads"] == 2 and facts["cores_allowed"] == len(allowed) and facts["onednn"]
        found.append(result)
        assert ("2 threads run on 1 cores" in done.stdout) == (len(allowed) == 1)
    assert found[0] == found[1] == found[2]


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    weights = UNet(1, 2, 2, 2).initial_weights(0)
    digest = model.save_weights(tmp_path / "weights.npz", weights)
    files.write_json(tmp_path / "model.json", {"fold": 1, "provenance": {"artefacts": {"weights.npz": digest}}})
    return tmp_path, weights


def test_a_model_comes_back(saved: tuple[Path, dict[str, np.ndarray]]) -> None:
    folder, weights = saved
    document, found = model.load_model(folder)
    assert document["fold"] == 1 and found.keys() == weights.keys()
    assert all((found[name] == weights[name]).all() and found[name].dtype == np.float32 for name in weights)
    before = (folder / "weights.npz").read_bytes()
    model.save_weights(folder / "weights.npz", dict(reversed(weights.items())))
    assert (folder / "weights.npz").read_bytes() == before


@pytest.mark.parametrize("kind", ["other", "renamed", "one bit", "half", "empty", "text", "missing"])
def test_weights_that_are_not_the_model_s_are_refused(saved: tuple[Path, dict[str, np.ndarray]], kind: str) -> None:
    folder, weights = saved
    path = folder / "weights.npz"
    data = path.read_bytes()
    if kind == "other":
        model.save_weights(path, UNet(1, 2, 2, 2).initial_weights(1))
    elif kind == "renamed":
        model.save_weights(path, {**weights, "e0_0_gamma": weights["e0_1_gamma"] + 1})
    elif kind == "one bit":
        path.write_bytes(data[:300] + bytes([data[300] ^ 1]) + data[301:])
    elif kind == "missing":
        path.unlink()
    else:
        path.write_bytes({"half": data[: len(data) // 2], "empty": b"", "text": b"weights"}[kind])
    with pytest.raises(UserError, match=r"weights\.npz: .*train the fold again") as caught:
        model.load_model(folder)
    assert "\n" not in str(caught.value)
