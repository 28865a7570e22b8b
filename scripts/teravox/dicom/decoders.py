"""Compressed and big-endian pixels to stored values, by GDCM and pydicom; files of one frame are decoded many at a time."""

import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pydicom
import SimpleITK as sitk
from pydicom.dataset import FileMetaDataset
from pydicom.encaps import encapsulate, generate_frames
from pydicom.uid import UID, generate_uid

from teravox.dicom.headers import Header
from teravox.errors import RejectedCase

BATCH = 64  # files decoded in one call: GDCM spends some 30 ms on a call, and a few on a plane
SINGLE, BYTES, WORDS = (f"1.2.840.10008.5.1.4.1.1.7{part}" for part in ("", ".2", ".3"))  # secondary capture: one frame, several of 8 or 16 bits
BARE = ("Rows", "Columns", "SamplesPerPixel", "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation")


def decoded(headers: Sequence[Header], sources: Sequence[Path]) -> dict[Path, np.ndarray]:
    """For each file all its frames as stored: (frame, row, column, component).

    headers : of plain files; sources : what to call each in a message. Raises RejectedCase for one that cannot be decoded.
    """
    found: dict[Path, np.ndarray] = {}
    waiting: dict[str, list[tuple[Header, Path]]] = {}
    for header, source in zip(headers, sources, strict=True):
        if header.frame_count == 1 and UID(header.syntax).is_compressed and header.frames[0].constant["SamplesPerPixel"] == 1:
            waiting.setdefault(header.syntax, []).append((header, source))
        else:
            found[header.path] = _file(header, source)
    for group in waiting.values():
        for start in range(0, len(group), BATCH):
            found |= _batch(group[start : start + BATCH])
    return found


def _batch(group: list[tuple[Header, Path]]) -> dict[Path, np.ndarray]:
    """Files of one frame each as the frames of one image; when that fails one by one, which tells the file at fault."""
    try:
        with warnings.catch_warnings(action="ignore"):
            data = [pydicom.dcmread(header.path) for header, _ in group]
            planes = _by_gdcm(data[0], [frame for item in data for frame in _encoded(item, 1)])
        alike = all(item.get(keyword) == data[0].get(keyword) for item in data for keyword in BARE)
        shape = (len(group), *(int(data[0][keyword].value) for keyword in ("Rows", "Columns")))
        if alike and planes.reshape(-1, *planes.shape[-2:]).shape == shape:
            return {header.path: plane[None, :, :, None] for (header, _), plane in zip(group, planes.reshape(shape), strict=True)}
    except Exception:  # decoders raise anything; each file is tried again, and says what is wrong
        pass
    return {header.path: _file(header, source) for header, source in group}


def _file(header: Header, source: Path) -> np.ndarray:
    """All frames of a file as stored: (frame, row, column, component). Raises RejectedCase."""
    try:
        with warnings.catch_warnings(action="ignore"):
            data = pydicom.dcmread(header.path)
            found = _by_gdcm(data, _encoded(data, header.frame_count)) if UID(header.syntax).is_compressed else data.pixel_array
    except Exception as error:  # decoders raise anything
        name = UID(header.syntax).name
        raise RejectedCase(
            f"{source}: pixels cannot be decoded ({name}; {type(error).__name__}), expected a readable image; damaged or unsupported"
        ) from None
    constant = header.frames[0].constant
    shape = tuple(int(constant[name]) for name in ("Rows", "Columns", "SamplesPerPixel"))
    if found.squeeze().shape != np.empty((header.frame_count, *shape), np.uint8).squeeze().shape:
        raise RejectedCase(f"{source}: pixels of shape {found.shape} when decoded, expected {header.frame_count} frames of {shape}; damaged header")
    return found.reshape(header.frame_count, *shape)


def _encoded(data: pydicom.Dataset, count: int) -> list[bytes]:
    """The code of every frame, whatever its fragments (PS3.5 section A.4)."""
    tables = [data[keyword].value for keyword in ("ExtendedOffsetTable", "ExtendedOffsetTableLengths") if keyword in data]
    bounds = (tables[0], tables[1]) if len(tables) == 2 else None
    return list(generate_frames(data.PixelData, number_of_frames=count, extended_offsets=bounds))


def _by_gdcm(data: pydicom.Dataset, frames: list[bytes]) -> np.ndarray:
    """GDCM's decoding of frames from which everything is taken that would change their values: rescaling, inversion, overlays.

    data : what the frames have in common. Each gets one fragment, since GDCM knows no Extended Offset Table.
    """
    bare = pydicom.Dataset()
    for keyword in BARE:
        if keyword in data:
            setattr(bare, keyword, data[keyword].value)
    bare.PhotometricInterpretation = "MONOCHROME2" if data.SamplesPerPixel == 1 else data.PhotometricInterpretation
    if data.SamplesPerPixel > 1:
        bare.PlanarConfiguration = data.get("PlanarConfiguration", 0)
    if len(frames) > 1:
        bare.NumberOfFrames = len(frames)
    bare.file_meta = FileMetaDataset()
    bare.file_meta.TransferSyntaxUID = data.file_meta.TransferSyntaxUID
    bare.SOPClassUID = SINGLE if len(frames) == 1 else WORDS if data.BitsAllocated > 8 else BYTES
    bare.file_meta.MediaStorageSOPClassUID = bare.SOPClassUID
    bare.SOPInstanceUID = bare.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    bare.PixelData = encapsulate(frames)
    bare["PixelData"].is_undefined_length = True
    with tempfile.TemporaryDirectory(prefix="teravox-") as scratch:
        path = Path(scratch, "bare.dcm")
        bare.save_as(path, enforce_file_format=True)
        return sitk.GetArrayFromImage(sitk.ReadImage(str(path), imageIO="GDCMImageIO"))
