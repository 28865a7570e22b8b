"""Damaged files against the readers: sources, one reading of one damaged copy, and what came of it.

`python tests/fuzz.py SOURCE MUTATION NUMBER FOLDER` makes one damaged source again and says what becomes of it.
"""

import argparse
import dataclasses
import re
import resource
import shutil
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import mutations
import naive
from fuzz_sources import NAMES, SECRET, Source, real_sources, sources
from teravox import checks, config, contained, geometry, ingest, manifest, rtstruct
from teravox.errors import RejectedCase

SEED, KEY = 2020, bytes(32)
NO_RULES, OPTIONS = config.defaults("channels[].match"), config.defaults("ingest")
KEEP = {**OPTIONS, "padding": "keep", "monochrome1": "keep"}
LABELS = [{"name": name, "value": value, "segment": ""} for value, name in enumerate(NAMES, start=1)]
VALUE_RTOL = 1e-5  # float32
GRID_ATOL_VOXELS = 1e-3  # a NIfTI header holds float32
DEATHS = {  # what a contained reader's end says of the reader
    "timeout": r"not read within",
    "signal": r"its reader ended",
    "memory": r"needs more memory than the",
    "leak": r"not readable \(\w+ in \w+\.\w+\)",
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """kind : accepted, corrected, rejected, a key of DEATHS, or wrong, crash, slow, which fail; text : the message or the difference."""

    kind: str
    text: str
    seconds: float


def damaged(source: Source, mutation: str, number: int, folder: Path, others: list[Source]) -> Path:
    """A copy of a source in which one file is damaged, the same for the same arguments. mutation : a name, or `join`."""
    random = np.random.default_rng([SEED, zlib.crc32(source.name.encode()), zlib.crc32(mutation.encode()), number])
    shutil.copytree(source.folder, folder)
    path = folder / source.targets[int(random.integers(len(source.targets)))]
    whole = path.read_bytes()
    data = source.unpack(whole)
    if mutation == "join":
        other = others[int(random.integers(len(others)))]
        changed = mutations.join(data, random, (other.folder / other.targets[-1]).read_bytes())
    else:
        changed = source.mutations[mutation](data, random)
    path.write_bytes(source.pack(changed, whole))
    return folder


def outcome(source: Source, folder: Path) -> Outcome:
    """Read a source as scripts/ingest.py does, and judge what comes of it."""
    begun = time.monotonic()
    try:
        found = _read(source, folder)
    except RejectedCase as error:
        text, seconds = str(error), time.monotonic() - begun
        if len(text.splitlines()) != 1 or "Traceback" in text or SECRET in text or not text.startswith(str(folder)):
            return Outcome("crash", f"no proper message: {text!r}", seconds)
        kind = next((kind for kind, pattern in DEATHS.items() if re.search(pattern, text)), "rejected")
        return Outcome(kind, text, seconds)
    except Exception as error:
        return Outcome("crash", f"{type(error).__name__}: {error}", time.monotonic() - begun)
    seconds = time.monotonic() - begun
    reads = [found] if isinstance(found, checks.Volume) else found.read.values()
    lines = [line for read in reads for line in (*read.notes, *read.corrections)]
    if any(SECRET in line or len(line.splitlines()) != 1 for line in lines):
        return Outcome("wrong", f"no proper note among {lines}", seconds)
    try:
        difference = contained.call(_difference, source, folder, found, about="naive decoding", megabytes=1)
    except RejectedCase as error:
        difference = str(error)
    if difference:
        return Outcome("wrong", f"{difference}; {lines}", seconds)
    return Outcome("corrected" if any(read.corrections for read in reads) else "accepted", "", seconds)


def _read(source: Source, folder: Path) -> Any:
    """A volume, or a whole case where the label is damaged; what scripts/ingest.py does outside the contained process too."""
    path = folder / source.read
    if source.kind == "label":
        settings = {"channels": [{"name": "image", "match": NO_RULES}], "labels": LABELS, "ignore_value": None, "ingest": OPTIONS}
        label = folder / source.targets[0]
        manifest.take({"image": str(path), "label": str(label)}, KEY)
        return ingest.ingest({"image": str(path)}, str(label), settings, run=contained.call)
    manifest.take({"image": str(path)}, KEY)
    rules = NO_RULES | {"component": source.component}
    found = contained.call(ingest.read_source, path, rules, OPTIONS, source.volume, about=str(path), megabytes=1)
    checks.check_intensities(found.array, str(path))
    geometry.to_canonical(found.array, found.affine)
    return found


def _difference(source: Source, folder: Path, found: Any) -> str:
    """How a volume or label differs from its naive decoding, "" when it does not."""
    path = folder / source.read
    if source.kind == "label":
        label = folder / source.targets[0]
        if rtstruct.is_structure_set(label):
            expected = naive.structures(label, found.label.shape, found.affine, NAMES)
        else:
            expected = naive.segmentation(label, found.label.shape, found.affine, NAMES, OPTIONS["fractional_threshold"])
        count = np.count_nonzero((found.label != expected) & (expected >= 0))
        return f"{count} label voxels differ" if count else ""
    if found.format == "dicom":  # whatever the file's name
        used = [account.path for account in found.accounts if account.status == "used"]
        left = [account.path for account in found.accounts if account.status != "used" and not found.corrections]
        if naive.series_of(left) & {"", *naive.series_of(used)}:
            return "a file of the series left out, without a correction"
        if not naive.decodable(used):
            return "" if found.checked_by == "dcm2niix" else "nothing else decodes these pixels"
        if any("padding" in line or "MONOCHROME1" in line for line in found.corrections):
            found = ingest.read_source(path, NO_RULES | {"component": source.component}, KEEP, source.volume)
        component = {None: None, "red": 0}[source.component]
        expected, affine = naive.mosaic(used) if naive.is_mosaic(used) else naive.series(used, component)
    elif path.name.endswith((".nii", ".nii.gz", ".hdr")):
        expected, affine = naive.nifti(path, path.with_suffix(".img") if path.suffix == ".hdr" else path, source.volume)
    else:
        expected, affine = naive.itk(path)
    if expected.shape != found.array.shape:
        return f"shape {found.array.shape}, naively {expected.shape}"
    off = geometry.grid_difference(affine, found.affine, expected.shape)
    if not off <= (10 if found.corrections else 1) * GRID_ATOL_VOXELS:
        return f"grid {found.affine.tolist()}, naively {affine.tolist()}"
    scale = float(np.abs(expected).max())
    if not np.allclose(found.array, expected, rtol=0, atol=VALUE_RTOL * scale):
        return f"{np.count_nonzero(~np.isclose(found.array, expected, rtol=0, atol=VALUE_RTOL * scale))} of {expected.size} voxels differ"
    return ""


def peak_megabytes() -> float:
    """The most memory that any contained process held, libraries included."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source")
    parser.add_argument("mutation")
    parser.add_argument("number", type=int)
    parser.add_argument("folder", type=Path, help="new folder for the sources and the damaged copy")
    parser.add_argument("--shared", type=Path, help="folder with the real data")
    args = parser.parse_args()
    (args.folder / "sources").mkdir(parents=True)
    made = sources(args.folder / "sources")
    every = {**made, **(real_sources(args.folder / "sources", args.shared) if args.shared else {})}
    print(outcome(every[args.source], damaged(every[args.source], args.mutation, args.number, args.folder / "damaged", list(made.values()))))
