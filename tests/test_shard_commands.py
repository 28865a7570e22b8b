"""The commands that write shards and look into them, as a user calls them."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

import teravox.network  # noqa: F401, isort: skip
import tensorflow as tf

from teravox import bulk, files, hashing, statistics, store

REPOSITORY = Path(__file__).resolve().parents[1]
AFFINE = np.array([[-1.5, 0, 0, 70], [0, 1.5, 0, -80], [0, 0, 2, 15.5], [0, 0, 0, 1]])
SETTINGS = {"channels": [{"name": "t1"}, {"name": "t2"}], "shard": {"block_mb": 0.002}}
SHAPE = (11, 9, 12)


def call(command: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, REPOSITORY / "scripts" / f"{command}.py", *map(str, arguments)], capture_output=True, text=True)


def resampled(folder: Path, seed: int, shape: tuple[int, int, int] = SHAPE, dtype: str = "<i2") -> tuple[np.ndarray, np.ndarray]:
    """A folder as the resampling stage writes it, of noise."""
    rng = np.random.default_rng(seed)
    image, label = (rng.normal(0, 300, (*shape, 2))).astype(dtype), rng.integers(0, 4, shape, np.uint8)
    folder.mkdir(parents=True)
    artefacts = {name: store.write(folder / name, array, AFFINE) for name, array in (("image.nii", image), ("label.nii", label))}
    files.write_json(
        folder / "case.json",
        {
            "grid": {"shape": list(shape), "affine": AFFINE.tolist()},
            "channels": {name: statistics.describe(image[..., index]) for index, name in enumerate(("t1", "t2"))},
            "dtype": np.dtype(dtype).name,
            "label_dtype": "uint8",
            "provenance": {"stage": "resample", "artefacts": artefacts},
        },
    )
    return image, label


def write(root: Path, shard: str, cases: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    settings = {**SETTINGS, "shard": {**SETTINGS["shard"], **options}}  # type: ignore[dict-item]
    names = [f"--case={case}=P{case}" for case in cases]
    return call(
        "write_shard", *names, "--resampled", root / "resample", "--shard", shard, "--settings", json.dumps(settings), "--out", root / "shards"
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, tuple[np.ndarray, np.ndarray]]]:
    root = tmp_path_factory.mktemp("run")
    cases = {name: resampled(root / "resample" / name, seed, dtype="<f4" if name == "c" else "<i2") for seed, name in enumerate("abc")}
    for shard, members in (("00000-of-00002", ["a", "c"]), ("00001-of-00002", ["b"])):
        done = write(root, shard, members)
        assert done.returncode == 0, done.stderr
        assert f"{shard}.tfrecord: " in done.stdout
    return root, cases


@pytest.fixture
def run(made: tuple[Path, dict[str, Any]], tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    shutil.copytree(made[0], tmp_path / "run")
    return tmp_path / "run"


def fails(done: subprocess.CompletedProcess[str], text: str) -> None:
    assert done.returncode == 1, done.stdout
    errors = [line for line in done.stderr.splitlines() if "it/s" not in line and "B/s" not in line and "case/s" not in line and line]
    assert len(errors) == 1 and errors[0].startswith("error: ") and text in errors[0], done.stderr
    assert "Traceback" not in done.stderr


def code_of_the_documentation() -> list[str]:
    return (REPOSITORY / "docs" / "shards.md").read_text().split("```python\n")[1:]


def test_the_reader_of_the_documentation_reads(made: tuple[Path, dict[str, tuple[np.ndarray, np.ndarray]]], tmp_path: Path) -> None:
    """At most 30 lines of plain TensorFlow, without anything of ours; it notices damage."""
    root, cases = made
    code = code_of_the_documentation()[0].split("```")[0]
    assert len(code.splitlines()) <= 30 and "teravox" not in code
    names: dict[str, Any] = {}
    exec(code, names)
    image, label = names["read_case"](str(root / "shards" / "00000-of-00002.index.json"), "c")
    np.testing.assert_array_equal(image.transpose(2, 1, 0, 3), cases["c"][0])
    np.testing.assert_array_equal(label.transpose(2, 1, 0), cases["c"][1])
    for codec in ("gzip", "none"):
        (tmp_path / "resample").unlink(missing_ok=True)
        (tmp_path / "resample").symlink_to(root / "resample")
        assert write(tmp_path, "00000-of-00001", ["a"], compression=codec).returncode == 0
        path = tmp_path / "shards" / "00000-of-00001.index.json"
        np.testing.assert_array_equal(names["read_case"](str(path), "a")[0].transpose(2, 1, 0, 3), cases["a"][0])
        shard = path.with_name("00000-of-00001.tfrecord")
        shard.write_bytes(shard.read_bytes().replace(shard.read_bytes()[700:720], bytes(20), 1))
        with pytest.raises(AssertionError, match="damaged"):
            names["read_case"](str(path), "a")


def test_a_shard_is_a_tfrecord_for_anyone(
    made: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = code_of_the_documentation()[1].split("```")[0]
    monkeypatch.chdir(made[0].parent)
    exec(code.replace("results/shards/00000-of-00003.tfrecord", str(made[0] / "shards" / "00000-of-00002.tfrecord")), {})
    assert capsys.readouterr().out.splitlines()[0] == "a 0 4 (4, 9, 11, 2) <i2"
    assert len(list(tf.data.TFRecordDataset(str(made[0] / "shards" / "00000-of-00002.tfrecord")))) == 3 + 6  # int16 and float32 blocks


def test_verify_says_what_it_did(made: tuple[Path, dict[str, Any]]) -> None:
    done = call("shard", "verify", made[0] / "shards")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert (
        lines[-1] == "no fault"
        and any(line.startswith("NOT against a ledger") for line in lines)
        and any("--against was not given" in line for line in lines)
    )
    done = call("shard", "verify", made[0] / "shards", "--against", made[0] / "resample")
    assert done.returncode == 0 and f"every voxel against {made[0] / 'resample'}" in done.stdout
    assert call("shard", "verify", made[0] / "shards" / "00001-of-00002.tfrecord").returncode == 0


def test_verify_compares_voxel_for_voxel(run: Path) -> None:
    """A volume that is valid in itself, but differs from the shard's in one voxel, in its affine, or is not there."""
    path = run / "resample" / "b" / "image.nii"
    good, document = path.read_bytes(), files.read_json(run / "resample" / "b" / "case.json")
    array, affine = (np.array(part) for part in store.read(path))
    changed = array.copy()
    changed[3, 4, 7, 1] += 1
    document["provenance"]["artefacts"]["image.nii"] = store.write(path, changed, affine)
    files.write_json(run / "resample" / "b" / "case.json", document)
    done = call("shard", "verify", run / "shards", "--against", run / "resample")
    fails(done, "faults: 1; ")
    assert f"image of case 'b' is {array[3, 4, 7, 1]} at voxel (3, 4, 7) channel 1, expected {changed[3, 4, 7, 1]} as resampled" in done.stdout
    moved = affine.copy()
    moved[0, 3] += 1
    for name in ("image.nii", "label.nii"):
        volume = array if name == "image.nii" else np.array(store.read(run / "resample" / "b" / name)[0])
        document["provenance"]["artefacts"][name] = store.write(run / "resample" / "b" / name, volume, moved)
    files.write_json(run / "resample" / "b" / "case.json", document)
    done = call("shard", "verify", run / "shards", "--against", run / "resample")
    fails(done, "faults: 1; ")
    assert "case 'b' differs from" in done.stdout and "in affine" in done.stdout
    path.write_bytes(good[:-1])
    fails(call("shard", "verify", run / "shards", "--against", run / "resample"), "faults: 1; ")
    shutil.rmtree(run / "resample" / "b")
    done = call("shard", "verify", run / "shards", "--against", run / "resample")
    fails(done, "faults: 1; ")
    assert "b/case.json: missing" in done.stdout
    fails(call("shard", "verify", run / "shards", "--against", run / "nowhere"), "nowhere: is no folder")
    for text in ("[]", "{}", '{"jobs": [{}]}', "[" * 100_000):
        (run / "list.json").write_text(text)
        fails(call("shard", "verify", run / "shards", "--ledger", run / "list.json"), "list.json: ")


def test_half_an_index_of_a_killed_writer_is_no_shard(run: Path) -> None:
    (run / "shards" / ".writing-77-00001-of-00002.index.json").write_text('{"bytes": 26')
    assert call("shard", "verify", run / "shards").returncode == 0
    assert write(run, "00001-of-00002", ["b"]).returncode == 0
    assert not list((run / "shards").glob(".*"))


def test_the_ledger_is_found_from_anywhere(run: Path) -> None:
    documents = sorted((run / "shards").glob("*.index.json"))
    jobs = [{"document": f"shards/{path.name}", "digest": hashing.file_digest(path)} for path in documents]
    files.write_json(run / "audit" / "ledger.json", {"jobs": jobs})
    (run / "link").symlink_to(run / "shards")
    for folder, shards in ((run / "shards", "."), (run / "shards", documents[0].name), (run, "shards"), (run, "link")):
        line = [sys.executable, str(REPOSITORY / "scripts" / "shard.py"), "verify", shards]
        done = subprocess.run(line, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0 and "indexes against" in done.stdout, done.stdout + done.stderr


def test_verify_names_every_fault(run: Path) -> None:
    shard = run / "shards" / "00000-of-00002.tfrecord"
    data = bytearray(shard.read_bytes())
    index = files.read_json(run / "shards" / "00000-of-00002.index.json")
    for record in index["records"][1::3]:
        data[record["offset"] + record["length"] // 2] ^= 1
    shard.write_bytes(data)
    (run / "shards" / "00001-of-00002.tfrecord").unlink()
    done = call("shard", "verify", run / "shards")
    fails(done, "faults: 4; run snakemake --cores all --forcerun write_shard")
    assert len([line for line in done.stdout.splitlines() if line.startswith("fault: ")]) == 4
    (run / "shards" / "00001-of-00002.index.json").unlink()
    done = call("shard", "verify", run / "shards")
    assert "00001-of-00002.index.json: missing, though other shards are named -of-00002" in done.stdout
    (run / "shards" / "00000-of-00002.index.json").unlink()
    fails(call("shard", "verify", run / "shards"), "00000-of-00002.tfrecord: has no index beside it")
    fails(call("shard", "verify", run / "resample"), "holds no shard")
    fails(call("shard", "verify", run / "nowhere"), "nowhere: missing, expected a folder of shards")
    fails(call("shard", "list", run / "resample" / "a" / "case.json"), "case.json: is no shard")


def test_list_and_show(made: tuple[Path, dict[str, Any]]) -> None:
    done = call("shard", "list", made[0] / "shards")
    assert done.returncode == 0
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[:3] for row in rows[1:]] == [["00000-of-00002", "a", "Pa"], ["00000-of-00002", "c", "Pc"], ["00001-of-00002", "b", "Pb"]]
    assert "11,9,12" in rows[1] and rows[2][-4:-2] == ["float32,", "uint8"]
    done = call("shard", "show", made[0] / "shards", "a")
    assert done.returncode == 0
    assert "11 x 9 x 12 voxels (x, y, z) of 1.5 x 1.5 x 2 mm, 2 channels, compression none" in done.stdout
    counts = np.bincount(made[1]["a"][1].ravel())
    assert f"label, uint8: value 1 in {counts[1]} voxels, value 2 in {counts[2]} voxels, value 3 in {counts[3]} voxels" in done.stdout
    fails(call("shard", "show", made[0] / "shards", "x"), "case 'x' is in no shard; those of the test set are in none")


def test_extract_gives_the_volumes_back(made: tuple[Path, dict[str, tuple[np.ndarray, np.ndarray]]], tmp_path: Path) -> None:
    root, cases = made
    for name, (image, label) in cases.items():
        done = call("shard", "extract", root / "shards", name, "--out", tmp_path / name)
        assert done.returncode == 0, done.stderr
        expected = files.read_json(root / "resample" / name / "case.json")["provenance"]["artefacts"]
        for file, array in (("image.nii", image), ("label.nii", label)):
            found = nib.load(tmp_path / name / file)
            np.testing.assert_array_equal(np.asanyarray(found.dataobj), array)
            np.testing.assert_allclose(found.affine, AFFINE, atol=1e-6)
            assert f"{file}: content hash {expected[file]}" in done.stdout
    done = call("shard", "extract", root / "shards", "b", "--planes", "5:9", "--out", tmp_path / "part")
    assert done.returncode == 0, done.stderr
    part = nib.load(tmp_path / "part" / "image.nii")
    np.testing.assert_array_equal(np.asanyarray(part.dataobj), cases["b"][0][:, :, 5:9])
    np.testing.assert_allclose(part.affine @ [1, 2, 0, 1], AFFINE @ [1, 2, 5, 1], atol=1e-5)
    fails(call("shard", "extract", root / "shards", "b", "--planes", "5:13", "--out", tmp_path / "none"), "has planes 0:12, asked for 5:13")
    assert call("shard", "extract", root / "shards", "b", "--planes", "five", "--out", tmp_path / "none").returncode == 2
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "kind", ["truncated", "empty", "one voxel", "missing", "another grid", "too few channels", "label elsewhere", "no document", "other channels"]
)
def test_a_damaged_volume_makes_no_shard(run: Path, kind: str) -> None:
    shutil.rmtree(run / "shards")
    path = run / "resample" / "c" / "image.nii"
    data = path.read_bytes()
    expected = "c/image.nii"
    if kind == "truncated":
        path.write_bytes(data[:-7])
    elif kind == "one voxel":
        path.write_bytes(data[:-7] + bytes([data[-7] ^ 1]) + data[-6:])
    elif kind == "missing":
        path.unlink()
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "label elsewhere":
        label = np.array(store.read(path.with_name("label.nii"))[0])
        store.write(path.with_name("label.nii"), label, AFFINE + np.eye(4)[:, [0, 1, 2, 3]] * [[0.25], [0], [0], [0]])
        expected = "image.nii and label.nii have different affines"
    elif kind == "no document":
        path.with_name("case.json").write_text(
            '{"provenance": {"artefacts": {}}, "dtype": "int16", "label_dtype": "uint8", "channels": {}, "grid": {"shape": [1]}}'
        )
        expected = "is not that of a resampled case with channels t1, t2"
    elif kind == "other channels":
        document = files.read_json(path.with_name("case.json"))
        document["channels"]["t3"] = document["channels"].pop("t2")
        files.write_json(path.with_name("case.json"), document)
        expected = "is not that of a resampled case with channels t1, t2"
    elif kind == "another grid":
        shutil.copy(run / "resample" / "a" / "image.nii", path)
    else:
        store.write(path, np.array(store.read(path)[0])[..., :1], AFFINE)
        expected = "expected one grid and 2 channels"
    fails(write(run, "00000-of-00001", ["a", "b", "c"]), expected)
    assert list((run / "shards").iterdir()) == []


def test_settings_by_hand_are_checked(made: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    arguments = ["--case=a=P", "--resampled", made[0] / "resample", "--shard", "00000-of-00001", "--out", tmp_path / "out"]
    fails(call("write_shard", *arguments, "--settings", "{}"), "settings: key 'channels' is missing")
    for options, expected in (({"block_mb": 0}, "'shard.block_mb' is 0"), ({"compression": "lzma"}, "expected one of none, gzip, blosc")):
        fails(call("write_shard", *arguments, "--settings", json.dumps({**SETTINGS, "shard": options})), expected)
    assert not (tmp_path / "out").exists()


def test_a_killed_writer_leaves_nothing_that_counts(tmp_path: Path) -> None:
    resampled(tmp_path / "resample" / "a", 0, (200, 200, 200))
    for ending in (signal.SIGKILL, signal.SIGTERM):
        arguments = ["--case=a=P", "--resampled", str(tmp_path / "resample"), "--shard", "00000-of-00001", "--out", str(tmp_path / "shards")]
        command = [sys.executable, str(REPOSITORY / "scripts" / "write_shard.py"), *arguments, "--settings", json.dumps(SETTINGS)]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        until = time.monotonic() + 60
        while not list((tmp_path / "shards").glob(".writing-*")) and time.monotonic() < until:
            time.sleep(0.005)
        process.send_signal(ending)
        assert process.wait() != 0
        assert [path for path in (tmp_path / "shards").iterdir() if not path.name.startswith(".")] == []
        assert ending == signal.SIGKILL or list((tmp_path / "shards").iterdir()) == []
        assert write(tmp_path, "00000-of-00001", ["a"], block_mb=1).returncode == 0
        assert sorted(path.suffix for path in (tmp_path / "shards").iterdir()) == [".json", ".json", ".tfrecord"]
        shutil.rmtree(tmp_path / "shards")


def test_a_volume_that_is_too_large_for_a_file_size_limit_is_one_line(tmp_path: Path) -> None:
    """As a full disk: the error names the file, and nothing is left."""
    resampled(tmp_path / "resample" / "a", 0, (60, 60, 60))
    arguments = ["--case=a=P", "--resampled", str(tmp_path / "resample"), "--shard", "00000-of-00001", "--out", str(tmp_path / "shards")]
    command = [sys.executable, str(REPOSITORY / "scripts" / "write_shard.py"), *arguments, "--settings", json.dumps(SETTINGS)]
    limited = (
        "import resource, signal, os, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300000, 300000)); os.execv(sys.argv[1], sys.argv[1:])"
    )
    done = subprocess.run([sys.executable, "-c", limited, *command], capture_output=True, text=True)
    fails(done, "00000-of-00001.tfrecord")
    assert list((tmp_path / "shards").iterdir()) == []


def test_a_large_case_takes_little_memory(tmp_path: Path) -> None:
    """120 MB of voxels: written, verified and extracted far below that, as nothing is ever whole in memory."""
    shape = (200, 200, 500)
    folder = tmp_path / "resample" / "a"
    folder.mkdir(parents=True)
    artefacts = {}
    with (
        bulk.create(folder / "image.nii", (*shape, 2), np.dtype("<i2"), AFFINE) as image,
        bulk.create(folder / "label.nii", shape, np.dtype("u1"), AFFINE) as label,
    ):
        for z in range(0, shape[2], 50):
            for channel in range(2):
                image.write(np.full((50, 200, 200), z + channel, "<i2"), z, 0, channel)
            label.write(np.full((50, 200, 200), z // 100, "u1"), z, 0)
        artefacts = {"image.nii": image.digest(), "label.nii": label.digest()}
    about = {"min": 0.0, "max": 450.0, "mean": 1.0, "std": 1.0, "dtype": "int16"}
    document = {"grid": {"shape": list(shape)}, "channels": {"t1": about, "t2": about}, "dtype": "int16", "label_dtype": "uint8"}
    files.write_json(folder / "case.json", {**document, "provenance": {"stage": "resample", "artefacts": artefacts}})
    watch = (
        "import runpy, sys; sys.argv = sys.argv[1:]; sys.path.insert(0, sys.argv[0].rpartition('/')[0])\n"
        "try: runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "finally: print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    )

    def peak(command: str, *arguments: object) -> float:
        line = [sys.executable, "-c", watch, str(REPOSITORY / "scripts" / f"{command}.py"), *map(str, arguments)]
        done = subprocess.run(line, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return int(done.stdout.splitlines()[-1]) * 1024

    settings = json.dumps({**SETTINGS, "shard": {"block_mb": 10}})
    peaks = {
        "write": peak(
            "write_shard",
            "--case=a=P",
            "--resampled",
            tmp_path / "resample",
            "--shard=00000-of-00001",
            "--settings",
            settings,
            "--out",
            tmp_path / "shards",
        )
    }
    idle = peak("shard", "list", tmp_path / "shards")
    peaks["verify"] = peak("shard", "verify", tmp_path / "shards", "--against", tmp_path / "resample")
    peaks["extract"] = peak("shard", "extract", tmp_path / "shards", "a", "--planes", "3:400", "--out", tmp_path / "out")
    assert peaks["extract"] < idle + 120e6, (idle, peaks)  # 64 MB at a time, and a channel of it
    assert peaks["write"] < idle + 40e6 and peaks["verify"] < idle + 60e6, (idle, peaks)
    assert (tmp_path / "out" / "image.nii").stat().st_size == 352 + 397 * 200 * 200 * 4
