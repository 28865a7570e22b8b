"""Sources to be damaged: each kind of file that is read, small, made in code or taken from real data."""

import dataclasses
import gzip
import shutil
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

import builders
import mutations
from builders import AFFINE, EXPECTED, STORED, compress, enhanced, s6, set_all, write
from teravox import geometry

SECRET = "DOE^JOHN"  # stands in every text that may name a patient
NAMES = ["a", "b"]  # of labels
LARGE = np.kron(STORED, np.ones((1, 4, 4), np.int16))  # JPEG needs some rows
NOW = {"DA": "20200101", "TM": "120000", "DT": "20200101120000"}
TURNED = np.array([[0, -0.5, 0, 10], [0.7, 0, 0, -20], [0, 0, 2, 30], [0, 0, 0, 1]])


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


def _inflated(data: bytes) -> bytes:
    return zlib.decompress(data[_meta(data) :], -zlib.MAX_WBITS)


def _deflated(inner: bytes, whole: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return whole[: _meta(whole)] + packer.compress(inner) + packer.flush()


def _meta(data: bytes) -> int:
    return 144 + int.from_bytes(data[140:144], "little")


def _gzipped(inner: bytes, whole: bytes) -> bytes:
    return gzip.compress(inner, mtime=0)


def written_as(syntax: str) -> builders.Change:
    def change(datasets: list[Any]) -> None:
        for data in datasets:
            data.file_meta.TransferSyntaxUID = syntax

    return change


def settled(datasets: list[Any], known: dict[str, str]) -> list[Any]:
    """Data sets without what differs from run to run: UIDs by their order, one date and time. known : UID -> what stands for it."""

    def settle(_: Any, element: Any) -> None:
        if element.VR == "UI" and str(element.value).startswith("1.2.826."):  # made by pydicom or highdicom
            element.value = known.setdefault(str(element.value), f"1.2.826.0.1.3680043.8.498.{1000 + len(known)}")
        elif element.VR in NOW and element.value:
            element.value = NOW[element.VR]

    for data in datasets:
        data.walk(settle)
        data.file_meta.walk(settle)
    return datasets


def sources(folder: Path) -> dict[str, Source]:
    """Every source made in code, written into a folder."""
    found: dict[str, Source] = {}
    uids: dict[str, str] = {}
    dicom = {**mutations.GENERAL, "element": mutations.element, "element again": mutations.element}
    named = set_all(PatientName=SECRET, PatientID=SECRET, SeriesDescription=SECRET, PixelPaddingValue=-3000)

    def add(name: str, kind: str, ways: dict[str, mutations.Mutation], read: str = ".", targets: list[str] | None = None, **more: Any) -> None:
        files = targets or sorted(path.name for path in (folder / name).iterdir())
        found[name] = Source(name, folder / name, read, files, kind, ways, **more)

    def dicom_series(name: str, datasets: list[Any], names: list[str] | None = None, **more: Any) -> None:
        write(folder / name, settled(datasets, uids), names)
        add(name, "series", dicom, **more)

    dicom_series("s6", s6([named]))
    dicom_series("no endings", s6([named, set_all(RescaleSlope="0.5", RescaleIntercept="-1024")]), [f"IM{number}" for number in range(6)])
    dicom_series("implicit", s6([named, written_as(ImplicitVRLittleEndian)]))
    swapped = s6([named, written_as(ExplicitVRBigEndian)])
    for data in swapped:
        data.PixelData = np.frombuffer(data.PixelData, "<i2").astype(">i2").tobytes()
    dicom_series("big endian", swapped)
    for name, syntax in (("rle", RLELossless), ("jpeg 2000", JPEG2000Lossless), ("jpeg-ls", JPEGLSLossless)):
        dicom_series(name, s6([named, compress(syntax)], LARGE))
    deflated = s6([named, written_as(DeflatedExplicitVRLittleEndian)])
    dicom_series("deflated", deflated)
    dicom_series("deflated, inside", deflated, unpack=_inflated, pack=_deflated)
    inside: dict[str, Any] = {"unpack": gzip.decompress, "pack": _gzipped}
    for name, packing in (("gzip", {}), ("gzip, inside", inside)):
        write(folder / name, settled(s6([named]), uids))
        for path in (folder / name).iterdir():
            path.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
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
        write(folder / name, settled([data], uids))
        builders.write_nifti(folder / name / "image.nii", EXPECTED, AFFINE)
        add(name, "label", dicom, "image.nii", ["0.dcm"])
    shapes = {
        name: [[(x + dx, y + dy, z) for dx, dy in ((0, 0), (2.13, 0), (2.13, 1.37), (0, 1.37))] for z in (2.0, 4.0, 6.0)]
        for name, (x, y) in {"a": (0.43, 0.33), "b": (3.23, 1.83)}.items()
    }
    drawn = builders.structure_set(image, shapes, references=[image[number].SOPInstanceUID for number in (1, 2, 3)] * 2)
    write(folder / "rtstruct", settled([drawn], uids), ["label.dcm"])
    write(folder / "rtstruct" / "image", settled(image, uids))
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
