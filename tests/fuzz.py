"""Damaged files against the readers: sources, one reading of one damaged copy, and what came of it.

`python tests/fuzz.py SOURCE MUTATION NUMBER FOLDER` makes one damaged source again and says what becomes of it.
"""

import argparse
import dataclasses
import gzip
import re
import resource
import shutil
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import SimpleITK as sitk
from nibabel.nifti1 import Nifti1Pair
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGLSLossless,
    RLELossless,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import builders
import mutations
import naive
from builders import AFFINE, EXPECTED, STORED, compress, enhanced, s6, set_all, write
from teravox import checks, config, contained, geometry, ingest, manifest, rtstruct
from teravox.errors import RejectedCase

SEED, KEY = 2020, bytes(32)
SECRET = "DOE^JOHN"
NO_RULES, OPTIONS = config.defaults("channels[].match"), config.defaults("ingest")
KEEP = {**OPTIONS, "padding": "keep", "monochrome1": "keep"}
NAMES = ["a", "b"]
LABELS = [{"name": name, "value": value, "segment": ""} for value, name in enumerate(NAMES, start=1)]
LARGE = np.kron(STORED, np.ones((1, 4, 4), np.int16))  # JPEG needs some rows
TURNED = np.array([[0, -0.5, 0, 10], [0.7, 0, 0, -20], [0, 0, 2, 30], [0, 0, 0, 1]])
VALUE_RTOL = 1e-5  # float32
GRID_ATOL_VOXELS = 1e-3  # a NIfTI header holds float32
DEATHS = {  # what a contained reader's end says of the reader
    "timeout": r"not read within",
    "signal": r"its reader ended",
    "memory": r"needs more memory than the",
    "leak": r"not readable \(\w+ in \w+\.\w+\)",
}


@dataclasses.dataclass(frozen=True)
class Source:
    """folder : the pristine files; read : what of it is read; targets : the files that may be damaged; kind : see `_read`.

    mutations : by name; unpack, pack : around a mutation that goes inside a compression; component : of colours; volume : of a 4D file.
    """

    name: str
    folder: Path
    read: str
    targets: list[str]
    kind: str
    mutations: dict[str, mutations.Mutation]
    unpack: Callable[[bytes], bytes] = bytes
    pack: Callable[[bytes, bytes], bytes] = lambda inner, whole: inner
    component: str | None = None
    volume: int | None = None


@dataclasses.dataclass(frozen=True)
class Outcome:
    """kind : accepted, corrected, rejected, a key of DEATHS, or wrong, crash, slow, which fail; text : the message or the difference."""

    kind: str
    text: str
    seconds: float


def _inflated(data: bytes) -> bytes:
    return zlib.decompress(data[_meta(data) :], -zlib.MAX_WBITS)


def _deflated(inner: bytes, whole: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return whole[: _meta(whole)] + packer.compress(inner) + packer.flush()


def _meta(data: bytes) -> int:
    return 144 + int.from_bytes(data[140:144], "little")


def _gzipped(inner: bytes, whole: bytes) -> bytes:
    return gzip.compress(inner, mtime=0)


def sources(folder: Path) -> dict[str, Source]:
    """Every source made in code, written into a folder."""
    found: dict[str, Source] = {}
    dicom = {**mutations.GENERAL, "element": mutations.element, "element again": mutations.element}
    named = set_all(PatientName=SECRET, PatientID=SECRET, SeriesDescription=SECRET, PixelPaddingValue=-3000)

    def add(name: str, kind: str, ways: dict[str, mutations.Mutation], read: str = ".", targets: list[str] | None = None, **more: Any) -> None:
        files = targets or sorted(path.name for path in (folder / name).iterdir())
        found[name] = Source(name, folder / name, read, files, kind, ways, **more)

    def dicom_series(name: str, datasets: list[Any], names: list[str] | None = None, **more: Any) -> None:
        write(folder / name, datasets, names)
        add(name, "series", dicom, **more)

    dicom_series("s6", s6([named]))
    dicom_series("no endings", s6([named, set_all(RescaleSlope="0.5", RescaleIntercept="-1024")]), [f"IM{number}" for number in range(6)])
    dicom_series(
        "implicit", s6([named, lambda datasets: [setattr(data.file_meta, "TransferSyntaxUID", ImplicitVRLittleEndian) for data in datasets]])
    )
    swapped = s6([named, lambda datasets: [setattr(data.file_meta, "TransferSyntaxUID", ExplicitVRBigEndian) for data in datasets]])
    for data in swapped:
        data.PixelData = np.frombuffer(data.PixelData, "<i2").astype(">i2").tobytes()
    dicom_series("big endian", swapped)
    for name, syntax in (("rle", RLELossless), ("jpeg 2000", JPEG2000Lossless), ("jpeg-ls", JPEGLSLossless)):
        dicom_series(name, s6([named, compress(syntax)], LARGE))
    deflated = s6([named, lambda datasets: [setattr(data.file_meta, "TransferSyntaxUID", DeflatedExplicitVRLittleEndian) for data in datasets]])
    dicom_series("deflated", deflated)
    dicom_series("deflated, inside", deflated, unpack=_inflated, pack=_deflated)
    inside: dict[str, Any] = {"unpack": gzip.decompress, "pack": _gzipped}
    for name, packing in (("gzip", {}), ("gzip, inside", inside)):
        write(folder / name, s6([named]))
        for path in (folder / name).iterdir():
            path.write_bytes(gzip.compress(path.read_bytes()))
        add(name, "series", dicom, **packing)
    colours = s6([named, set_all(SamplesPerPixel=3, PhotometricInterpretation="RGB", PlanarConfiguration=0, PixelPaddingValue=None)])
    for number, data in enumerate(colours):
        data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = 8, 8, 7, 0
        data.PixelData = ((np.arange(8 * 10 * 3) * 7 + number) % 251).astype(np.uint8).tobytes()
    dicom_series("colour", colours, component="red")
    dicom_series("enhanced", [enhanced(PatientName=SECRET)])
    packed = enhanced(LARGE, PatientName=SECRET)
    packed.compress(JPEG2000Lossless, generate_instance_uid=False)
    dicom_series("enhanced jpeg 2000", [packed])

    image = s6([set_all(PatientName=SECRET, PatientID=SECRET)])
    segment = np.random.default_rng(1).integers(0, 3, STORED.shape).astype(np.uint8)
    for name, kind, mask, syntax in (
        ("binary", "BINARY", segment, None),
        ("binary rle", "BINARY", segment, RLELossless),
        ("fractional", "FRACTIONAL", (segment == 1) * 0.7, None),
        ("labelmap", "LABELMAP", segment, None),
    ):
        name = f"seg {name}"
        data = builders.segmentation(image, mask, NAMES[:1] if kind == "FRACTIONAL" else NAMES, kind, omit_empty_frames=False)
        data.ContentDescription = SECRET
        if syntax:
            pixels = data.pixel_array.astype(np.uint8).tobytes()
            data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelData = 8, 8, 7, pixels
            data.compress(syntax, generate_instance_uid=False)
        write(folder / name, [data])
        builders.write_nifti(folder / name / "image.nii", EXPECTED, AFFINE)
        add(name, "label", dicom, "image.nii", ["0.dcm"])
    shapes = {
        name: [[(x + dx, y + dy, z) for dx, dy in ((0, 0), (2.13, 0), (2.13, 1.37), (0, 1.37))] for z in (2.0, 4.0, 6.0)]
        for name, (x, y) in {"a": (0.43, 0.33), "b": (3.23, 1.83)}.items()
    }
    uids = [image[number].SOPInstanceUID for number in (1, 2, 3)] * 2
    write(folder / "rtstruct", [builders.structure_set(image, shapes, references=uids)], ["label.dcm"])
    write(folder / "rtstruct" / "image", image)
    add("rtstruct", "label", dicom, "image", ["label.dcm"])

    volume = np.ascontiguousarray(np.random.default_rng(2).integers(-3000, 3000, (9, 7, 5)).astype(np.int16))
    ways = {**mutations.GENERAL, "nifti": mutations.nifti, "nifti again": mutations.nifti}

    def save(name: str, image: Any, file: str) -> Path:
        (folder / name).mkdir()
        image.header.set_xyzt_units("mm")
        image.header["descrip"] = SECRET
        image.to_filename(folder / name / file)
        return folder / name / file

    scaled = nib.Nifti1Image(volume, TURNED)
    scaled.header.set_slope_inter(0.5, 3)
    formats: list[tuple[str, Any, str, dict[str, Any]]] = [
        ("nifti", nib.Nifti1Image(volume, TURNED), "x.nii", {}),
        ("nifti scaled", scaled, "x.nii", {}),
        ("nifti float", nib.Nifti1Image(volume.astype(np.float32) / 7, TURNED), "x.nii", {}),
        ("nifti 4d", nib.Nifti1Image(np.stack([volume, volume + 1, volume - 5], axis=3), TURNED), "x.nii", {"volume": 1}),
        ("nifti-2", nib.Nifti2Image(volume, TURNED), "x.nii", {}),
        ("nifti gzip", nib.Nifti1Image(volume, TURNED), "x.nii.gz", {}),
        ("nifti gzip, inside", nib.Nifti1Image(volume, TURNED), "x.nii.gz", inside),
        ("nifti pair", Nifti1Pair(volume, TURNED), "x.hdr", {}),
    ]
    for name, picture, file, more in formats:
        save(name, picture, file)
        add(name, "file", ways, file, **more)
    ways = {**mutations.GENERAL, "text": mutations.text, "text again": mutations.text, "text once more": mutations.text}
    for name, file, small in (
        ("nrrd", "x.nrrd", False),
        ("nrrd gzip", "x.nrrd", True),
        ("nrrd detached", "x.nhdr", False),
        ("mha", "x.mha", False),
        ("mha packed", "x.mha", True),
        ("mhd", "x.mhd", False),
        ("mhd packed", "x.mhd", True),
    ):
        (folder / name).mkdir()
        sitk.WriteImage(geometry.to_sitk(volume, TURNED), str(folder / name / file), small)
        add(name, "file", ways, file)
    return found


def real_sources(folder: Path, shared: Path) -> dict[str, Source]:
    """Small series of the real data: a mosaic in each transfer syntax, and slices of several vendors."""
    ways = {**mutations.GENERAL, "element": mutations.element}
    found: dict[str, Source] = {}
    places = {f"mosaic {path.stem}": [path] for path in sorted((shared / "data/dicom/transfer_syntaxes/In").glob("*.dcm"))}
    mini = shared / "data/dicom/vendor_mini"
    for name in ("hitachi/anatomical", "generic/compressed_jpeg", "generic/compressed_jpegls", "generic/compressed_rle", "generic/compressed_j2k"):
        first = min(path.parent for path in (mini / name).rglob("*.dcm"))
        places[name] = sorted(first.glob("*.dcm"))
    for name, paths in places.items():
        target = folder / name.replace("/", " ")
        target.mkdir()
        for path in paths:
            shutil.copy(path, target)
        found[name] = Source(name, target, ".", [path.name for path in paths], "series", ways)
    return found


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
