"""What ingestion costs beside dcm2niix alone, and how long a survey takes.

    python tests/benchmarks/ingest.py          300 slices of 512 x 512, uncompressed and RLE; survey of 10,000 files; about three minutes
    python tests/benchmarks/ingest.py --full   also JPEG 2000, and a survey of 100,000

Ingestion is everything that is done for a DICOM channel: hashes of the files, every header, own decoding, dcm2niix's conversion and the
comparison with it, statistics, and the compressed volume. dcm2niix converts and compresses, to a gzip file of the same size. Both run
by turns on the same files in processes of their own; imports are not counted. The last two lines are JSON: worst median ratio, and
seconds of the survey; exit status 1 when one misses its target.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RATIO, SECONDS = 1.5, 60.0  # targets; the second for 10,000 files
SLICES, EDGE, TURNS = 300, 512, 5
LEVEL = 2  # of dcm2niix's gzip: its file is then as large as ours, see "bytes"


def series(folder: Path, change: str) -> None:
    """A smooth body with noise in air, as CT stores it. change : "raw", "rle" or "jpeg 2000"."""
    import numpy as np
    from pydicom.uid import JPEG2000Lossless, RLELossless, generate_uid
    from scipy import ndimage

    import builders

    rng = np.random.default_rng(0)
    organs = ndimage.zoom(ndimage.gaussian_filter(rng.normal(size=(40, 64, 64)), 2), (SLICES / 40, EDGE / 64, EDGE / 64), order=1)
    x, y = np.meshgrid(*[np.linspace(-1, 1, EDGE)] * 2)
    folder.mkdir()
    uids = generate_uid(), generate_uid(), generate_uid()
    for number in range(SLICES):
        hounsfield = np.where(x**2 + y**2 < 0.8, 40 + 2000 * organs[number] + rng.normal(0, 12, (EDGE, EDGE)), -1000)
        data = builders.s6(
            [builders.set_all(RescaleIntercept=-1024, PixelSpacing=[0.7, 0.7], SliceThickness=1)], hounsfield[None].astype(np.int16) + 1024
        )[0]
        data.SeriesInstanceUID, data.StudyInstanceUID, data.FrameOfReferenceUID = uids
        data.ImagePositionPatient, data.InstanceNumber = [-180, -180, float(number)], number + 1
        if change in {"rle", "jpeg 2000"}:
            data.compress(RLELossless if change == "rle" else JPEG2000Lossless, generate_instance_uid=False)
        data.save_as(folder / f"{number:04}.dcm", enforce_file_format=True)


def tree(folder: Path, count: int) -> None:
    """Studies of two series of 100 small slices."""
    import numpy as np
    from pydicom.uid import generate_uid

    import builders

    slices = builders.s6(stored=np.random.default_rng(0).integers(-500, 1500, (100, 64, 64)).astype(np.int16))
    for first in range(0, count, 100):
        place = folder / f"study{first // 200}" / f"series{first // 100 % 2}"
        place.mkdir(parents=True)
        study, uid = f"1.2.3.{first // 200}", generate_uid()
        for number, data in enumerate(slices):
            data.StudyInstanceUID, data.SeriesInstanceUID, data.PatientID = study, uid, f"patient{first // 200}"
            data.SOPInstanceUID = data.file_meta.MediaStorageSOPInstanceUID = generate_uid()
            data.save_as(place / f"{number}.dcm", enforce_file_format=True)


def ours(folder: Path) -> None:
    """Ingest a series as scripts/ingest.py does for a channel; prints seconds and the size of the volume's file."""
    sys.path.insert(0, str(ROOT / "scripts"))
    from teravox import config, contained, geometry, ingest, manifest, pseudonyms, volumes

    rules, options = config.defaults("channels[].match"), config.defaults("ingest")
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch, "ct.nii.gz")
        started = time.perf_counter()
        manifest.take({"ct": str(folder)}, pseudonyms.PUBLIC_KEY)
        megabytes = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
        volume = contained.call(ingest.read_source, folder, rules, options, None, about=str(folder), megabytes=megabytes)
        volumes.check_intensities(volume.array, str(folder))
        array, affine = geometry.to_canonical(volume.array, volume.affine)
        ingest.keep(out, array, affine)
        seconds = time.perf_counter() - started
        print(json.dumps({"seconds": seconds, "bytes": out.stat().st_size, "checked_by": volume.checked_by}))


def by_turns(folder: Path) -> Iterator[tuple[float, float, float]]:
    """Seconds of ours and of dcm2niix, and the ratio of the compressed sizes."""
    import dcm2niix

    for _ in range(TURNS):
        done = subprocess.run([sys.executable, __file__, "--one", str(folder)], check=True, capture_output=True, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        with tempfile.TemporaryDirectory() as scratch:
            started = time.perf_counter()
            subprocess.run([dcm2niix.bin, "-b", "n", "-z", "i", f"-{LEVEL}", "-f", "ct", "-o", scratch, str(folder)], check=True, capture_output=True)
            seconds = time.perf_counter() - started
            yield found["seconds"], seconds, found["bytes"] / Path(scratch, "ct.nii.gz").stat().st_size


def timed(function: Callable[[], object]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--full", action="store_true", help="also JPEG 2000, and 100,000 files")
    parser.add_argument("--one", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        ours(args.one)
        return 0
    sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests")]
    worst, slowest = 0.0, 0.0
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        for change in ["raw", "rle", *(["jpeg 2000"] if args.full else [])]:
            series(scratch / "series", change)
            times = list(by_turns(scratch / "series"))
            own, peer, size = (statistics.median(column) for column in zip(*times, strict=True))
            ratio = statistics.median(first / second for first, second, _ in times)
            worst = max(worst, ratio)
            print(
                json.dumps(
                    {"series": change, "ours_s": round(own, 3), "dcm2niix_s": round(peer, 3), "ratio": round(ratio, 3), "bytes": round(size, 3)}
                )
            )
            shutil.rmtree(scratch / "series")
        for count in [10_000, *([100_000] if args.full else [])]:
            tree(scratch / "tree", count)
            command = [sys.executable, str(ROOT / "scripts" / "ingest.py"), "survey", str(scratch / "tree"), "--out", str(scratch / "out")]
            command += ["--key", str(scratch / "key")]
            seconds = timed(lambda command=command: subprocess.run(command, check=True, capture_output=True))  # type: ignore[misc]
            slowest = max(slowest, seconds * 10_000 / count)
            print(json.dumps({"survey_files": count, "seconds": round(seconds, 2)}))
            shutil.rmtree(scratch / "tree")
    figures = [("ingestion over dcm2niix, worst series", worst, RATIO), ("seconds to survey 10,000 DICOM files", slowest, SECONDS)]
    for figure, value, target in figures:
        print(json.dumps({"figure": figure, "value": round(value, 3), "target": target, "pass": value <= target}))
    return int(any(value > target for _, value, target in figures))


if __name__ == "__main__":
    raise SystemExit(main())
