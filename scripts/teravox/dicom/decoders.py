"""Compressed and big-endian pixels to stored values, by pydicom's plug-ins and by GDCM."""

import tempfile
import warnings
from pathlib import Path

import numpy as np
import pydicom
import SimpleITK as sitk
from pydicom.dataset import FileMetaDataset
from pydicom.encaps import encapsulate, generate_frames
from pydicom.pixels import get_decoder
from pydicom.uid import UID, DeflatedExplicitVRLittleEndian, generate_uid

from teravox import seg_frames
from teravox.dicom.headers import Header
from teravox.errors import ENDINGS, RejectedCase

SINGLE, BYTES, WORDS = (f"1.2.840.10008.5.1.4.1.1.7{part}" for part in ("", ".2", ".3"))  # secondary capture: one frame, several of 8 or 16 bits
BARE = ("Rows", "Columns", "SamplesPerPixel", "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation")


def decoded(header: Header, source: Path) -> np.ndarray:
    """All frames of a file as stored: (frame, row, column, component). source : what to call it. Raises RejectedCase.

    pydicom's plug-ins where there is one for the transfer syntax (they take a twentieth of GDCM's time for RLE), else GDCM.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            data = pydicom.dcmread(header.path)
            syntax = UID(header.syntax)
            frames = _encoded(data, header.frame_count) if syntax.is_compressed else []
            for number, frame in enumerate(frames, start=1):
                seg_frames.check_coded(f"{source}: compressed frame {number}", frame, (data.Rows, data.Columns))
            found = _by_gdcm(data, frames) if needs_gdcm(syntax) else data.pixel_array
    except (RejectedCase, *ENDINGS):
        raise
    except BaseException as error:  # decoders raise anything
        name = UID(header.syntax).name
        raise RejectedCase(
            f"{source}: pixels cannot be decoded ({name}; {type(error).__name__}), expected a readable image; damaged or unsupported"
        ) from None
    constant = header.frames[0].constant
    shape = tuple(int(constant[name]) for name in ("Rows", "Columns", "SamplesPerPixel"))
    if found.squeeze().shape != np.empty((header.frame_count, *shape), np.uint8).squeeze().shape:
        raise RejectedCase(f"{source}: pixels of shape {found.shape} when decoded, expected {header.frame_count} frames of {shape}; damaged header")
    return found.reshape(header.frame_count, *shape)


def needs_gdcm(syntax: str) -> bool:
    """Whether a transfer syntax is compressed and pydicom has no decoder for it here."""
    try:
        return UID(syntax).is_compressed and syntax != DeflatedExplicitVRLittleEndian and not get_decoder(UID(syntax)).is_available
    except NotImplementedError:
        return True


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
