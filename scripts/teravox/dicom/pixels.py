"""Voxels of a stack: stored values decoded frame by frame, then the modality's values by each frame's own rescaling."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydicom.uid import (
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000TransferSyntaxes,
    JPEGLSTransferSyntaxes,
    JPEGTransferSyntaxes,
)

from teravox import numa
from teravox.dicom import decoders
from teravox.dicom.frames import RESCALES, Frame
from teravox.dicom.headers import Header
from teravox.errors import RejectedCase

CALIBRATED = {"CT", "PT"}  # modalities whose rescaled values have a unit, whatever MONOCHROME1 says about their display
PADDING_GAP = 0.01  # of the range of all other values: padding nearer to them than this is as good as background, and is left
MEMORY_COPIES = 4  # of the voxels alive at once while a series is read: stored, rescaled, compared, written
CODED = {*JPEGTransferSyntaxes, *JPEGLSTransferSyntaxes, *JPEG2000TransferSyntaxes}  # samples have a precision, and no overlay's bits beside them


@dataclasses.dataclass(frozen=True)
class Voxels:
    """plain : (column, row, slice), stored values with their rescaling and nothing else; values : what the volume means.

    corrections, notes : one line each.
    """

    plain: np.ndarray
    values: np.ndarray
    corrections: list[str]
    notes: list[str]


def check_memory(frames: Sequence[Frame], source: str) -> None:
    """Raises RejectedCase when the frames' voxels would not fit the memory that this process may use."""
    first = frames[0].constant
    pixels = int(first["Rows"]) * int(first["Columns"])
    largest = max(frame.header.frame_count for frame in frames)  # a compressed file is decoded whole
    need = MEMORY_COPIES * 4 * pixels * max(len(frames), largest)
    if need > numa.granted_bytes():
        raise RejectedCase(
            f"{source}: {len(frames)} planes of {first['Rows']} x {first['Columns']} need about {need / 1e9:.1f} GB to be read, "
            f"found {numa.granted_bytes() / 1e9:.1f} GB; use a larger machine, or leave the case out"
        )


def stored(frames: Sequence[Frame], files: dict[Path, Header], component: int | None = None) -> np.ndarray:
    """Stored values (slice, row, column) of frames, signed as PixelRepresentation says, without overlays' bits above BitsStored.

    files : for each frame's file a header of what can be read in its place: itself, or its decompressed copy; component : of a colour
    image. Raises RejectedCase when pixels cannot be decoded.
    """
    constant = frames[0].constant
    shape = int(constant["Rows"]), int(constant["Columns"])
    dtype = np.dtype(f"{'i' if constant['PixelRepresentation'] else 'u'}{int(constant['BitsAllocated']) // 8}")
    result = np.empty((len(frames), *shape), dtype)
    decoded: tuple[Path | None, np.ndarray] = None, np.empty(0)
    spare = int(constant["BitsAllocated"]) - int(constant["BitsStored"])
    for index, frame in enumerate(frames):
        header = files[frame.header.path]
        if header.syntax in {ImplicitVRLittleEndian, ExplicitVRLittleEndian} and component is None:
            count = math.prod(shape)
            begin = header.offset + frame.number * count * dtype.itemsize
            plane = np.fromfile(header.path, dtype.newbyteorder("<"), count, offset=begin).reshape(shape)
        else:
            if decoded[0] != header.path:
                decoded = header.path, decoders.decoded(header, frame.header.path)
            plane = decoded[1][frame.number, :, :, component or 0]
        plane = plane.astype(dtype, copy=False)
        result[index] = (plane << spare) >> spare if spare else plane
        kept = result[index] & (2 ** int(constant["BitsStored"]) - 1) if spare else plane
        if header.syntax in CODED and not (np.array_equal(plane, result[index]) or np.array_equal(plane, kept)):
            raise RejectedCase(f"{frame.place}: decoded values need more than {constant['BitsStored']} bits (BitsStored), expected at most; damaged")
    return result


def values(frames: Sequence[Frame], pixels: np.ndarray, source: str, options: dict[str, Any]) -> Voxels:
    """Stored values to the modality's values.

    frames : of the slices; pixels : (slice, row, column) as stored; options : `monochrome1` and `padding` of the configuration's
    `ingest`. MONOCHROME1 is inverted within BitsStored before rescaling, as GDCM does. Raises RejectedCase.
    """
    constant = frames[0].constant
    corrections: list[str] = []
    notes: list[str] = []
    padding = _padding(pixels, constant)
    plain = _rescaled(frames, pixels)
    result = plain
    if constant["PhotometricInterpretation"] == "MONOCHROME1":
        result = _monochrome1(frames, pixels, plain, source, options["monochrome1"], corrections, notes)
    if constant["Modality"] == "CT" and constant.get(RESCALES) == 0:
        notes.append("CT without RescaleSlope and RescaleIntercept: values are as stored, which need not be HU")
    if len({(frame.slope, frame.intercept) for frame in frames}) > 1:
        notes.append("each slice has its own rescaling")
    if padding is not None:
        result = _without_padding(result, padding, options["padding"], corrections, notes)
    return Voxels(plain.transpose(2, 1, 0), result.transpose(2, 1, 0), corrections, notes)


def _rescaled(frames: Sequence[Frame], pixels: np.ndarray) -> np.ndarray:
    """stored * slope + intercept, per slice (PS3.3 C.11.1.1.2): an integer type where nothing else is needed, else float32."""
    scales = [(frame.slope, frame.intercept) for frame in frames]
    if len(set(scales)) == 1:
        slope, intercept = scales[0]
        if (slope, intercept) == (1, 0):
            return pixels
        if slope == 1 and intercept == int(intercept):
            low, high = int(pixels.min()) + int(intercept), int(pixels.max()) + int(intercept)
            for bits in (16, 32):
                if -(2 ** (bits - 1)) <= low and high < 2 ** (bits - 1):  # two's complement wraps on the way, and comes out right
                    return (pixels.astype(f"u{bits // 8}") + np.array(int(intercept) % 2**bits, f"u{bits // 8}")).view(f"i{bits // 8}")
    result = np.empty(pixels.shape, np.float32)
    with np.errstate(over="ignore"):  # what overflows becomes infinite, and is refused as that
        for index, (slope, intercept) in enumerate(scales):
            result[index] = pixels[index].astype(np.float64) * slope + intercept
    return result


def _monochrome1(
    frames: Sequence[Frame], pixels: np.ndarray, plain: np.ndarray, source: str, rule: str, corrections: list[str], notes: list[str]
) -> np.ndarray:
    modality = str(frames[0].constant["Modality"])
    if rule == "auto" and modality in CALIBRATED:
        raise RejectedCase(
            f"{source}: MONOCHROME1 in {modality}, whose values have a unit, expected MONOCHROME2; set ingest.monochrome1 to keep or invert"
        )
    if rule == "keep":
        notes.append("MONOCHROME1: values are kept as stored, high is dark")
        return plain
    bits = int(frames[0].constant["BitsStored"])
    top = -1 if frames[0].constant["PixelRepresentation"] else 2**bits - 1  # lowest and highest value of BitsStored add up to this
    corrections.append("MONOCHROME1: stored values inverted, so that high is bright")
    return _rescaled(frames, (top - pixels.astype(np.int64)).astype(pixels.dtype))


def _padding(pixels: np.ndarray, constant: dict[str, Any]) -> np.ndarray | None:
    """Where pixels hold PixelPaddingValue, or lie between it and PixelPaddingRangeLimit (PS3.3 C.7.5.1.1.2); None for nowhere."""
    if not isinstance(constant["PixelPaddingValue"], int):
        return None
    bits = 8 * pixels.dtype.itemsize

    def as_stored(value: int) -> int:  # written as US where it is SS, or the other way round
        value %= 2**bits
        return value - 2**bits if pixels.dtype.kind == "i" and value >= 2 ** (bits - 1) else value

    first = as_stored(constant["PixelPaddingValue"])
    last = as_stored(constant["PixelPaddingRangeLimit"]) if isinstance(constant["PixelPaddingRangeLimit"], int) else first
    where = (pixels >= min(first, last)) & (pixels <= max(first, last))
    return where if where.any() else None


def _without_padding(array: np.ndarray, padding: np.ndarray, rule: str, corrections: list[str], notes: list[str]) -> np.ndarray:
    count = int(np.count_nonzero(padding))
    if padding.all():
        return array  # all voxels are equal, which is refused later
    others = array[~padding]
    low, high = float(others.min()), float(others.max())
    inside = array[padding]
    gap = max(low - float(inside.max()), float(inside.min()) - high)
    if rule == "replace" and gap > PADDING_GAP * (high - low):
        corrections.append(f"{count} padding voxels ({inside[0]:g}) set to the lowest other value ({low:g})")
        array = np.where(padding, others.min(), array)
    else:
        notes.append(f"{count} voxels hold the padding value ({inside[0]:g})")
    return array


def upright(array: np.ndarray, affine: np.ndarray, drift: np.ndarray, source: str) -> tuple[np.ndarray, np.ndarray]:
    """A gantry-tilted stack on an upright grid that holds all of it: each slice shifted in its plane by linear interpolation.

    array : (column, row, slice); affine : (4, 4), RAS+, mm, third axis along the normal, origin of the first slice; drift : (3,) mm, LPS,
    from each slice to the next, across the normal. Outside lies the lowest value. Integers stay integers, rounded. source : begins a
    message. Raises RejectedCase when the grid would not fit the memory that this process may use.
    """
    ras = np.array([-drift[0], -drift[1], drift[2]])
    shifts = [float(ras @ affine[:3, axis] / (affine[:3, axis] @ affine[:3, axis])) for axis in (0, 1)]  # voxels per slice
    ends = [shift * (array.shape[2] - 1) for shift in shifts]
    starts = [math.floor(min(0.0, end)) for end in ends]
    size = [array.shape[axis] + math.ceil(max(0.0, ends[axis])) - starts[axis] for axis in (0, 1)]
    if MEMORY_COPIES * math.prod(size) * array.shape[2] * array.itemsize > numa.granted_bytes():
        raise RejectedCase(f"{source}: an upright grid of {size[0]} x {size[1]} x {array.shape[2]} voxels, more than memory holds; correct the tilt")
    low = array.min()
    result = np.full((*size, array.shape[2]), low, array.dtype, order="F")
    for number in range(array.shape[2]):
        plane = array[:, :, number].astype(np.float64)
        for axis in (0, 1):
            plane = _moved(plane, axis, shifts[axis] * number - starts[axis], size[axis], float(low))
        result[:, :, number] = np.rint(plane) if array.dtype.kind in "iu" else plane
    moved = affine.copy()
    moved[:3, 3] = (affine @ [*starts, 0, 1])[:3]
    return result, moved


def _moved(plane: np.ndarray, axis: int, shift: float, size: int, outside: float) -> np.ndarray:
    """A plane moved along an axis by a shift of at least 0 voxels, into `size` voxels."""
    whole = math.floor(shift)
    part = shift - whole
    padded = np.full([size if other == axis else plane.shape[other] for other in (0, 1)], outside)
    index: list[Any] = [slice(None), slice(None)]
    index[axis] = slice(whole, whole + plane.shape[axis])
    padded[tuple(index)] = plane
    if not part:
        return padded
    before = np.full_like(padded, outside)
    index[axis] = slice(1, None)
    other: list[Any] = [slice(None), slice(None)]
    other[axis] = slice(None, -1)
    before[tuple(index)] = padded[tuple(other)]
    return (1 - part) * padded + part * before
