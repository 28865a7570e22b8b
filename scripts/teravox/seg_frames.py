"""Frames of a DICOM SEG as it stores them: native, bit-packed or compressed, each decoded alone and to a size known beforehand."""

import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pydicom
from pydicom import encaps, uid
from pydicom.pixels import get_decoder

from teravox.errors import RejectedCase

DEFLATED_FRAMES = "1.2.840.10008.1.2.8.1"  # Deflated Image Frame Compression, PS3.5 section A.4.14
NATIVE = {uid.ImplicitVRLittleEndian, uid.ExplicitVRLittleEndian, uid.DeflatedExplicitVRLittleEndian}
CODED = {uid.RLELossless, uid.JPEG2000Lossless, uid.JPEG2000, uid.JPEGLSLossless}
PHOTOMETRIC = ("MONOCHROME2", "PALETTE COLOR")  # the second of a LABELMAP only (PS3.3 section C.8.20.2)
END = b"\xff\xd9"  # EOI of JPEG (ISO/IEC 10918-1 B.1.1.3) and JPEG-LS, EOC of JPEG 2000 (15444-1 A.4.4); a frame may be padded with zeros
FRAME_HEADERS = {0xF7, *range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # markers of JPEG-LS and JPEG: tables and an extension lie between


def reader(path: Path, data: pydicom.Dataset, count: int) -> Callable[[int], np.ndarray]:
    """A function from a frame's index (from 0) to its stored values (row, column), unsigned. Raises RejectedCase, as the function does.

    count : number of frames. Memory: one frame beyond the file, since its size is that of the headers or the frame is refused.
    """
    syntax, bits = str(data.file_meta.TransferSyntaxUID), int(data.BitsAllocated)
    rows, columns = int(data.Rows), int(data.Columns)
    if int(data.get("SamplesPerPixel", 1)) != 1 or int(data.get("PixelRepresentation", 0)) != 0 or bits not in (1, 8, 16):
        raise RejectedCase(f"{path}: BitsAllocated is {bits}, expected one unsigned value of 1, 8 or 16 bits per pixel")
    if not 1 <= int(data.get("BitsStored") or 0) <= bits:
        raise RejectedCase(f"{path}: BitsStored is missing or not within BitsAllocated ({bits}), expected 1 to {bits}; damaged file")
    if str(data.get("PhotometricInterpretation")) not in PHOTOMETRIC:
        raise RejectedCase(f"{path}: PhotometricInterpretation is none of a segmentation's, expected {' or '.join(PHOTOMETRIC)}")
    size = rows * columns
    dtype = np.dtype("u1" if bits < 16 else "<u2")
    pixels = data.PixelData

    def native(index: int) -> np.ndarray:
        return unpack(pixels, index, size) if bits == 1 else np.frombuffer(pixels, dtype, size, index * size * dtype.itemsize)

    if syntax in NATIVE:
        expected = (size * count * bits + 7) // 8
        if len(pixels) < expected:
            raise RejectedCase(f"{path}: truncated, found {len(pixels)} bytes of pixels, expected {expected}; get the file again from its source")
        return lambda index: native(index).reshape(rows, columns)
    if syntax not in CODED and syntax != DEFLATED_FRAMES:
        raise RejectedCase(
            f"{path}: a transfer syntax other than uncompressed, deflated, RLE, JPEG 2000 or JPEG-LS lossless; store it in one of them"
        )
    table = (data.ExtendedOffsetTable, data.ExtendedOffsetTableLengths) if "ExtendedOffsetTable" in data else None
    frames = list(encaps.generate_frames(pixels, number_of_frames=count, extended_offsets=table))
    if len(frames) != count:
        raise RejectedCase(f"{path}: {len(frames)} compressed frames, expected {count} (NumberOfFrames); get the file again from its source")

    def inflated(index: int) -> np.ndarray:
        expected = (size * bits + 7) // 8
        content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(frames[index], expected + 2)  # a frame may be padded to an even length
        if not expected <= len(content) <= expected + expected % 2:
            raise RejectedCase(f"{path}: frame {index + 1} inflates to another size than {expected} bytes; get the file again from its source")
        return unpack(content, 0, size) if bits == 1 else np.frombuffer(content, dtype, size)

    def decoded(index: int) -> np.ndarray:
        if syntax != uid.RLELossless and coded_size(frames[index]) != (rows, columns):
            raise RejectedCase(
                f"{path}: the compressed frame {index + 1} has another size than {rows} x {columns}; get the file again from its source"
            )
        check_coded(f"{path}: compressed frame {index + 1}", frames[index], (rows, columns))
        return get_decoder(syntax).as_array(
            encaps.encapsulate([frames[index]], has_bot=False),
            index=0,
            raw=True,
            rows=rows,
            columns=columns,
            number_of_frames=1,
            samples_per_pixel=1,
            bits_allocated=max(bits, 8),
            bits_stored=int(data.BitsStored),
            photometric_interpretation="MONOCHROME2",
            pixel_representation=0,
            pixel_keyword="PixelData",
        )[0]

    one = inflated if syntax == DEFLATED_FRAMES else decoded
    return lambda index: one(index).reshape(rows, columns)


def unpack(pixels: bytes, index: int, size: int) -> np.ndarray:
    """Frame `index` of `size` bits each, packed without gaps, the first in the lowest bit (PS3.5 section 8.1.1): (size,) of 0 and 1."""
    start = index * size
    part = np.frombuffer(pixels, np.uint8, (start + size + 7) // 8 - start // 8, start // 8)
    return np.unpackbits(part, bitorder="little")[start % 8 : start % 8 + size]


def coded_size(frame: bytes) -> tuple[int, int] | None:
    """(rows, columns) that a JPEG 2000 codestream (ISO/IEC 15444-1 A.5.1) or a JPEG or JPEG-LS frame (10918-1 B.2.2) declares, else None.

    A decoder allocates what is declared, whatever the frame's length.
    """

    def number(at: int, length: int) -> int:
        return int.from_bytes(frame[at : at + length], "big")

    if frame.startswith(b"\xff\x4f\xff\x51"):
        return number(12, 4) - number(20, 4), number(8, 4) - number(16, 4)
    at = 2
    while frame.startswith(b"\xff\xd8") and at + 9 < len(frame) and frame[at] == 0xFF:
        if frame[at + 1] in FRAME_HEADERS:
            return number(at + 5, 2), number(at + 7, 2)
        at += 2 + max(number(at + 2, 2), 2)
    return None


def check_coded(place: str, frame: bytes, shape: tuple[int, int]) -> None:
    """Raises RejectedCase for a frame of another size than `shape`, (row, column), or one of the JPEG family without its end.

    Decoders take memory for whatever size a frame declares, and some fill up what is missing.
    """
    declared = coded_size(frame)
    if declared not in (None, shape):
        raise RejectedCase(f"{place} is of {declared[0]} x {declared[1]} pixels, expected {shape[0]} x {shape[1]}; damaged file")
    if declared and not frame.rstrip(b"\0").endswith(END):
        raise RejectedCase(f"{place} has no end marker, expected one; truncated, get the file again from its source")
