"""Speed, size and memory of shards, beside bare loops over the same bytes and the layout of one float32 Example per volume.

    python tests/benchmarks/shards.py          about three minutes on two cores
    python tests/benchmarks/shards.py --full   also what the codecs do to real voxels

Everything lies in the page cache. Volumes: int16 with a label of uint8, 400^3 voxels each. Each loop runs by turns, so many times, and
the fastest turns are compared, as a virtual machine takes ten times as long for memory that it has to ask for; writing is compared by
medians, as the disk makes single turns fast or slow. Reading: whole volumes, one thread, three times through them; the bare loops read
the same file into arrays of a volume's size, in one call each, or a megabyte at a time when they hash it as they go. The layout of one
Example per volume (image and label as float32, as in nobrainer's files) is read by tf.data with parse_single_example and decode_raw, ours
by the training's own feed without its transformations. Writing: as scripts/write_shard.py does, with as many threads as cores, sources
checked against their hashes, the file flushed to the disk; the plain copy is flushed too. The last lines are JSON with a target each; exit
status 1 when one is missed.
"""

import argparse
import contextlib
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests")]
EDGE, VOLUMES, TURNS, PASSES = 400, 3, 5, 3
BLOCK_BYTES, PIECE = 64e6, 1 << 20
TALL = (800, 800, 1260)  # float32: 3.2 GB, 3.0 GiB
CHANNELS = ["image"]
PLANES = 32  # of the tall volume, read at a time
EPOCHS = 50


def make(folder: Path, shape: tuple[int, int, int], dtype: str, seed: int) -> None:
    """A resampled case: smooth noise, and a label in its middle."""
    from teravox import bulk, files

    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    x, y, z = shape
    noise = rng.normal(0, 30, (16, y, x)).cumsum(2)
    with (
        bulk.create(folder / "image.nii", (*shape, 1), np.dtype(dtype), np.eye(4)) as image,
        bulk.create(folder / "label.nii", shape, np.dtype("u1"), np.eye(4)) as label,
    ):
        for plane in range(z):
            image.write(np.ascontiguousarray((noise[plane % 16] + rng.normal(0, 5, (y, x)))[None].astype(dtype)), plane, 0)
            part = np.zeros((1, y, x), np.uint8)
            part[:, y // 4 : y // 2, x // 4 : x // 2] = 1 + (plane // 40) % 3
            label.write(part, plane, 0)
        artefacts = {"image.nii": image.digest(), "label.nii": label.digest()}
    about = {"dtype": np.dtype(dtype).name, "min": 0.0, "max": 1.0, "mean": 0.0, "std": 1.0}
    document = {"channels": dict.fromkeys(CHANNELS, about), "grid": {"shape": list(shape)}, "dtype": np.dtype(dtype).name, "label_dtype": "uint8"}
    files.write_json(folder / "case.json", {**document, "provenance": {"stage": "resample", "artefacts": artefacts}})


def write(root: Path, names: list[str], out: Path, threads: int) -> Path:
    """A shard as scripts/write_shard.py makes it; returns its index."""
    import shard_files
    from teravox import resampled, shard_writer

    @contextlib.contextmanager
    def volume(name: str) -> Iterator[shard_writer.Volume]:
        with resampled.opened(root / name, CHANNELS) as found, ThreadPoolExecutor(1) as checker:
            checked = checker.submit(resampled.check, root / name, found)
            yield shard_writer.Volume(name, found.about("P", CHANNELS), found.image_planes, found.label_planes)
            checked.result()

    out.mkdir(exist_ok=True)
    index = shard_writer.write_shard(out / "00000-of-00001.tfrecord", map(volume, names), BLOCK_BYTES, "none", threads)
    return shard_files.seal(out / "00000-of-00001.index.json", index)


def by_turns(loops: dict[str, Callable[[], object]], turns: int = TURNS, pick: Callable[[list[float]], float] = min) -> dict[str, float]:
    """Seconds of each loop's fastest turn, or of the one that `pick` takes; the first turn warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for turn in range(turns + 1):
        for name, loop in loops.items():
            started = time.perf_counter()
            loop()
            if turn:
                seconds[name].append(time.perf_counter() - started)
    return {name: pick(found) for name, found in seconds.items()}


def bare(path: Path, hashed: bool) -> None:
    """Read a file into an array of a volume's size, and another; hashed: a megabyte at a time, and hash it while it is in the cache."""
    size = path.stat().st_size
    part = -(-size // VOLUMES)
    descriptor = os.open(path, os.O_RDONLY)
    for first in range(0, size, part):
        sha256, view = hashlib.sha256(), np.empty(min(part, size - first), np.uint8).data
        for start in range(0, len(view), PIECE if hashed else part):
            piece = view[start : start + PIECE] if hashed else view
            os.preadv(descriptor, [piece], first + start)
            if hashed:
                sha256.update(piece)
    os.close(descriptor)


def copy(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    with source.open("rb") as reading, target.open("wb") as writing:
        while piece := reading.read(PIECE):
            writing.write(piece)
        writing.flush()
        os.fsync(writing.fileno())


def reading(path: Path, folder: Path) -> dict[str, float]:
    """Ratios of reading: to the bare loops, and to one Example per volume."""
    import teravox.network  # noqa: F401, isort: skip
    import tensorflow as tf

    from teravox.feed import Feed
    from teravox.shard_reader import ShardReader
    from teravox.shards import shard_path

    readers = {check: ShardReader([path], check) for check in ("checksum", "size")}
    cases, shard = list(readers["size"].places), shard_path(path)
    whole = folder / "whole.tfrecord"
    with tf.io.TFRecordWriter(str(whole)) as writer:
        for case in cases:
            arrays = dict(zip(("image", "label"), readers["size"].load(case), strict=True))
            feature = {name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[array.astype("<f4").tobytes()])) for name, array in arrays.items()}
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())

    def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        found = tf.io.parse_single_example(record, {name: tf.io.FixedLenFeature([], tf.string) for name in ("image", "label")})
        return tuple(tf.reshape(tf.io.decode_raw(found[name], tf.float32), (EDGE, EDGE, EDGE)) for name in ("image", "label"))

    signature = (tf.TensorSpec((None, None, None, None), tf.int16), tf.TensorSpec((None, None, None), tf.uint8))
    feeds = {check: Feed(reader, cases, 0, 0, lambda case, image, label, rng: (image, label), signature) for check, reader in readers.items()}

    def all_cases(check: str) -> None:
        for case in cases * PASSES:
            readers[check].load(case)

    def through(feed: Feed) -> None:
        for _ in feed.steps(feed.dataset(0, PASSES * len(cases), 1, 1, workers=1)):
            pass

    def examples() -> None:
        for _ in tf.data.TFRecordDataset(str(whole)).repeat(PASSES).map(parse):
            pass

    def bare_loop(hashed: bool) -> None:
        for _ in range(PASSES):
            bare(shard, hashed)

    seconds = by_turns(
        {
            "bare read": lambda: bare_loop(False),
            "size": lambda: all_cases("size"),
            "bare read and hash": lambda: bare_loop(True),
            "checksum": lambda: all_cases("checksum"),
            "feed, size": lambda: through(feeds["size"]),
            "feed, checksum": lambda: through(feeds["checksum"]),
            "one Example per volume": examples,
        }
    )
    for name, found in seconds.items():
        size, voxels = (PASSES * number / found / 1e6 for number in (shard.stat().st_size, EDGE**3 * len(cases)))
        print(f"{name}: {size:,.0f} MB/s, {voxels:,.0f} million voxels/s", flush=True)
    whole.unlink()
    return {
        "reading with checksums, of bare read and hash": seconds["bare read and hash"] / seconds["checksum"],
        "reading with check: size, of bare read": seconds["bare read"] / seconds["size"],
        "feed with checksums, of bare read and hash": seconds["bare read and hash"] / seconds["feed, checksum"],
        "voxels per second, times one float32 Example per volume": seconds["one Example per volume"] / seconds["feed, checksum"],
    }


def writing(root: Path, names: list[str], folder: Path) -> dict[str, float]:
    from teravox.shards import shard_path

    threads = len(os.sched_getaffinity(0))
    path = folder / "write" / "00000-of-00001.index.json"

    def ours() -> None:
        shard_path(path).unlink(missing_ok=True)
        write(root, names, folder / "write", threads)

    ours()
    seconds = by_turns({"shard": ours, "copy": lambda: copy(shard_path(path), folder / "copy")}, 9, statistics.median)
    size = shard_path(path).stat().st_size
    for name, found in seconds.items():
        print(f"writing a {name}: {size / found / 1e6:,.0f} MB/s, {threads if name == 'shard' else 1} threads", flush=True)
    native = EDGE**3 * 3 * len(names)
    return {"writing, of a plain copy": seconds["copy"] / seconds["shard"], "size beyond the native bytes, %": 100 * (size / native - 1)}


def slabs(index: Path) -> None:
    """Read all of a volume some planes at a time."""
    from teravox.shard_reader import ShardReader

    reader = ShardReader([index])
    (case,) = reader.places
    depth = reader.place(case).entry["shape"][0]
    for first in range(0, depth, PLANES):
        reader.load(case, first, min(first + PLANES, depth))


def epochs(index: Path) -> None:
    """Memory after the fifth epoch and the most from there on, MB, of a feed of whole volumes."""
    import psutil

    import teravox.network  # noqa: F401, isort: skip
    import tensorflow as tf

    from teravox.feed import Feed
    from teravox.shard_reader import ShardReader

    reader, found = ShardReader([index]), []
    signature = (tf.TensorSpec((None, None, None, None), tf.int16), tf.TensorSpec((None, None, None), tf.uint8))
    feed = Feed(reader, list(reader.places), 0, 0, lambda case, image, label, rng: (image, label), signature)
    steps = EPOCHS * len(feed.cases)
    for number, _ in enumerate(feed.steps(feed.dataset(0, steps, EDGE**3 * 3, 0))):
        if number >= 5 * len(feed.cases):
            found.append(psutil.Process().memory_info().rss / 1e6)
    quarter = len(found) // 4
    print(json.dumps([max(found[:quarter]), max(found[-quarter:])]))


WATCH = """
import runpy, sys
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    print(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
"""


def peak(script: Path, *arguments: object) -> float:
    """Peak resident memory of a command, MB."""
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", WATCH, str(script), *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    found = int(done.stdout.splitlines()[-1]) * 1024 / 1e6
    print(f"{script.name} {arguments[0]}: {found:,.0f} MB, {time.monotonic() - started:.0f} s", flush=True)
    return found


def tall(folder: Path) -> float:
    """The largest peak of what is done with a volume of 3 GiB, MB."""
    make(folder / "tall" / "resample" / "tall", TALL, "<f4", 9)
    settings = json.dumps({"channels": [{"name": name} for name in CHANNELS]})
    shards = folder / "tall" / "shards"
    arguments = [
        "--case=tall=P",
        "--resampled",
        folder / "tall" / "resample",
        "--shard=00000-of-00001",
        "--settings",
        settings,
        "--threads=2",
        "--out",
        shards,
    ]
    peaks = [
        peak(ROOT / "scripts" / "write_shard.py", *arguments),
        peak(ROOT / "scripts" / "shard.py", "verify", shards, "--against", folder / "tall" / "resample"),
        peak(Path(__file__).resolve(), "--slabs", shards / "00000-of-00001.index.json"),
    ]
    return max(peaks)


def codec_rows() -> list[dict[str, Any]]:
    """What the codecs make of heads of the embedded cohort at 1 mm, on one thread."""
    from teravox import codecs, phantom

    affine = np.diag([1.0, 1, 1, 1])
    affine[:3, 3] = -79.5
    heads = [phantom.sample_head(2020, patient, 0, (160, 160, 160), affine) for patient in range(3)]
    voxels = {
        "image": [np.ascontiguousarray(np.stack([images[name].T for name in phantom.CHANNELS], axis=-1)) for images, _ in heads],
        "label": [np.ascontiguousarray(label.T) for _, label in heads],
    }
    rows = []
    for kind, arrays in voxels.items():
        size = sum(array.nbytes for array in arrays)
        for codec in ("blosc", "gzip"):
            packed = [codecs.encode(codec, array) for array in arrays]
            outs = [np.empty_like(array) for array in arrays]

            def encode(arrays: list[np.ndarray] = arrays, codec: str = codec) -> None:
                for array in arrays:
                    codecs.encode(codec, array)

            def decode(packed: list[bytes] = packed, outs: list[np.ndarray] = outs, codec: str = codec) -> None:
                for data, out in zip(packed, outs, strict=True):
                    codecs.decode(codec, data, out)

            seconds = by_turns({"encode": encode, "decode": decode}, 3)
            row = {"voxels": f"{kind}, {arrays[0].dtype.name}", "codec": codec, "share": round(sum(map(len, packed)) / size, 3)}
            rows.append(row | {f"{name}_mb_s": round(size / found / 1e6) for name, found in seconds.items()})
            print(json.dumps(rows[-1]), flush=True)
    return rows


TARGETS = {  # figure: target, and whether it is the least or the most
    "reading with checksums, of bare read and hash": (0.6, "least"),
    "reading with check: size, of bare read": (0.8, "least"),
    "feed with checksums, of bare read and hash": (0.6, "least"),
    "voxels per second, times one float32 Example per volume": (3, "least"),
    "writing, of a plain copy": (0.5, "least"),
    "size beyond the native bytes, %": (1, "most"),
    "memory of a 3 GiB volume written, verified, read by slabs, MB": (2 * 1024**3 / 1e6, "most"),
    "growth of memory over 50 epochs, of a volume": (0.5, "most"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--full", action="store_true", help="also what the codecs do to real voxels")
    parser.add_argument("--out", type=Path, help="folder for the volumes, 10 GB (default: a temporary one)")
    parser.add_argument("--slabs", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--epochs", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.slabs or args.epochs:
        (slabs if args.slabs else epochs)(args.slabs or args.epochs)
        return 0
    with tempfile.TemporaryDirectory(dir=args.out) as name:
        folder = Path(name)
        names = [f"c{number}" for number in range(VOLUMES)]
        for number, case in enumerate(names):
            make(folder / "resample" / case, (EDGE, EDGE, EDGE), "<i2", number)
        found = writing(folder / "resample", names, folder)
        index = folder / "write" / "00000-of-00001.index.json"
        found |= reading(index, folder)
        done = subprocess.run([sys.executable, __file__, "--epochs", str(index)], capture_output=True, text=True, check=True)
        early, late = json.loads(done.stdout.splitlines()[-1])
        print(f"memory over {EPOCHS} epochs: at most {early:,.0f} MB in the first quarter after the fifth, {late:,.0f} MB in the last", flush=True)
        found["growth of memory over 50 epochs, of a volume"] = (late - early) / (EDGE**3 * 3 / 1e6)
        found["memory of a 3 GiB volume written, verified, read by slabs, MB"] = tall(folder)
    if args.full:
        codec_rows()
    missed = 0
    for figure, (target, kind) in TARGETS.items():
        passed = found[figure] >= target if kind == "least" else found[figure] <= target
        missed += not passed
        print(json.dumps({"figure": figure, "value": round(found[figure], 4), "target": round(target, 1), "pass": passed}))
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
