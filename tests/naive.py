"""Slow, plain decoding of files by other libraries than the readers use for the same step, following the header as it stands.

Each gives (array, affine): (x, y, z) in the file's own order of axes, and (4, 4), RAS+, mm; anything may be raised.
"""

import io
import re
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pydicom
import SimpleITK as sitk
from matplotlib.path import Path as Outline
from nibabel.fileholders import FileHolder
from nibabel.nifti1 import Nifti1Pair
from nibabel.nifti2 import Nifti2Pair
from pydicom.filereader import read_partial
from pydicom.pixels import get_decoder

with warnings.catch_warnings(action="ignore"):  # it calls itself experimental
    from nibabel.nicom import dicomwrappers

LPS = np.diag([-1.0, -1, 1, 1])
GROUPS = "PlanePosition", "PlaneOrientation", "PixelMeasures", "PixelValueTransformation", "SegmentIdentification"
EDGE_VOXELS = 0.02  # nearer to a contour's edge than this, rounding decides whether a voxel lies inside


def unpacked(path: Path) -> bytes:
    """A file's content, out of gzip with its checksum compared; what follows the last member is left out."""
    data = path.read_bytes()
    if not data.startswith(b"\x1f\x8b"):
        return data
    found = b""
    while data.startswith(b"\x1f\x8b"):
        unpack = zlib.decompressobj(zlib.MAX_WBITS + 16)
        found += unpack.decompress(data)
        if not unpack.eof:
            raise EOFError
        data = unpack.unused_data
    return found


def _dataset(path: Path) -> pydicom.Dataset:
    """A file up to its pixels: tags rise within a data set (PS3.5 section 7.1), so what follows them is not of the image."""
    stream, passed = io.BytesIO(unpacked(path)), False

    def behind(tag: int, *_: object) -> bool:
        nonlocal passed
        passed, before = tag == 0x7FE00010, passed
        return before

    return read_partial(stream, stop_when=behind)


def decodable(paths: list[Path]) -> bool:
    """Whether pydicom has a decoder for these files: it has none for lossless JPEG."""
    return all(get_decoder(_dataset(path).file_meta.TransferSyntaxUID).is_available for path in paths)


def series_of(paths: list[Path]) -> set[str]:
    """SeriesInstanceUIDs of some files, "" for one without."""
    return {str(_dataset(path).get("SeriesInstanceUID", "")) for path in paths}


def _groups(data: pydicom.Dataset, number: int) -> Iterator[pydicom.Dataset]:
    """Where to look for an attribute of a frame: in its groups, in those of all frames, in sequences of other names, outside of them."""
    holders = [*(data.get("PerFrameFunctionalGroupsSequence") or [])[number : number + 1], *(data.get("SharedFunctionalGroupsSequence") or [])]
    for holder in holders:
        yield from (holder[f"{name}Sequence"].value[0] for name in GROUPS if holder.get(f"{name}Sequence"))
    for holder in holders:
        yield from (element.value[0] for element in holder if element.VR == "SQ" and element.value)
    yield data


def _value(data: pydicom.Dataset, number: int, keyword: str, otherwise: Any = None) -> Any:
    found = next((place[keyword].value for place in _groups(data, number) if keyword in place), None)
    return otherwise if found is None or found == "" else found


def series(paths: list[Path], component: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The slices of some DICOM files by pydicom, as axes (column, row, slice along the normal)."""
    planes = []
    for path in paths:
        data = _dataset(path)
        pixels = data.pixel_array
        pixels = pixels if component is None else pixels[..., component]
        pixels = pixels.reshape(-1, *pixels.shape[-2:])
        for number, plane in enumerate(pixels):
            slope, intercept = float(_value(data, number, "RescaleSlope", 1)), float(_value(data, number, "RescaleIntercept", 0))
            position = np.array(_value(data, number, "ImagePositionPatient"), float)
            cosines = np.array(_value(data, number, "ImageOrientationPatient"), float).reshape(2, 3)
            planes.append((position, cosines, np.array(_value(data, number, "PixelSpacing"), float), plane.T * slope + intercept))
    normal = np.cross(*planes[0][1])
    planes.sort(key=lambda plane: plane[0] @ normal)
    affine = np.eye(4)
    affine[:3, 0], affine[:3, 1] = planes[0][1][0] * planes[0][2][1], planes[0][1][1] * planes[0][2][0]
    affine[:3, 2] = (planes[-1][0] - planes[0][0]) / (len(planes) - 1)
    affine[:3, 3] = planes[0][0]
    return np.stack([plane for *_, plane in planes], axis=2), LPS @ affine


def is_mosaic(paths: list[Path]) -> bool:
    return len(paths) == 1 and "MOSAIC" in (_dataset(paths[0]).get("ImageType") or [])


def mosaic(paths: list[Path]) -> tuple[np.ndarray, np.ndarray]:
    """A Siemens mosaic by nibabel."""
    (path,) = paths
    wrapper = dicomwrappers.wrapper_from_data(_dataset(path))
    return np.asarray(wrapper.get_data()).transpose(1, 0, 2), LPS @ np.asarray(wrapper.affine)[:, [1, 0, 2, 3]]


def nifti(header: Path, voxels: Path, volume: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """A NIfTI file or pair by nibabel, in mm."""
    data, content = (unpacked(path) if path.name.endswith(".gz") else path.read_bytes() for path in (header, voxels))
    size = 348 if b"\x5c" in data[:4] else 540
    data = data[:size] + bytes(4) + data[size + 4 :]  # without extensions, which change no voxel
    single, pair = (nib.Nifti1Image, Nifti1Pair) if size == 348 else (nib.Nifti2Image, Nifti2Pair)
    if header == voxels:
        image = single.from_bytes(data)
    else:
        image = pair.from_file_map({"header": FileHolder(fileobj=io.BytesIO(data)), "image": FileHolder(fileobj=io.BytesIO(content))})
    array = np.asarray(image.dataobj, np.float64)
    array = array.reshape(array.shape[:4] if volume is not None else array.shape[:3])
    affine = image.affine.copy()
    affine[:3] *= {0: 1, 1: 1e3, 2: 1, 3: 1e-3}[int(image.header["xyzt_units"]) & 7]
    return array if volume is None else array[..., volume], affine


def itk(path: Path, *_: Any) -> tuple[np.ndarray, np.ndarray]:
    """A NRRD or MetaImage file by ITK, in mm. ITK does not unpack voxels whose size is not told, so it is."""
    data = path.read_bytes()
    header, separator, voxels = data.partition(b"ElementDataFile = LOCAL\n")
    if separator and b"CompressedDataSize" not in header:
        path.write_bytes(header + b"CompressedDataSize = %d\n" % len(voxels) + separator + voxels)
    image = sitk.ReadImage(str(path))
    axes = image.GetDimension()
    array = sitk.GetArrayFromImage(image).T
    affine = np.eye(4)
    affine[:3, :3] = np.array(image.GetDirection()).reshape(axes, axes)[:3, :3] * np.array(image.GetSpacing())[:3]
    affine[:3, 3] = image.GetOrigin()[:3]
    written = re.search(rb'(?:space units: *"|DistanceUnits *[=:] *)(\w+)', data)
    affine[:3] *= {b"m": 1e3, b"um": 1e-3}.get(written[1] if written else b"", 1)
    return array.reshape(array.shape[:3]), LPS @ affine


def segmentation(path: Path, shape: tuple[int, int, int], affine: np.ndarray, names: list[str], threshold: float) -> np.ndarray:
    """A DICOM SEG frame by frame, voxel by voxel: position in `names` + 1, the first name first. shape, affine : of the grid, RAS+."""
    data = _dataset(path)
    pixels = data.pixel_array.reshape(-1, data.Rows, data.Columns)
    numbers = {int(item.SegmentNumber): names.index(item.SegmentLabel) + 1 for item in data.SegmentSequence if item.SegmentLabel in names}
    result = np.zeros(shape, int)
    for frame, plane in enumerate(pixels):
        position = np.array(_value(data, frame, "ImagePositionPatient"), float)
        row, column = np.array(_value(data, frame, "ImageOrientationPatient"), float).reshape(2, 3)
        between_rows, between_columns = (float(value) for value in _value(data, frame, "PixelSpacing"))
        for (y, x), value in np.ndenumerate(plane):
            point = position + column * between_rows * y + row * between_columns * x
            index = tuple(np.rint(np.linalg.solve(LPS @ affine, [*point, 1])[:3]).astype(int))
            if data.SegmentationType == "LABELMAP":
                found = numbers.get(int(value), 0)
            else:
                held = value > 0 if data.SegmentationType == "BINARY" else value / data.MaximumFractionalValue >= threshold
                found = numbers[int(_value(data, frame, "ReferencedSegmentNumber"))] if held else 0
            if found:
                result[index] = min(found, result[index] or found)
    return result


def structures(path: Path, shape: tuple[int, int, int], affine: np.ndarray, names: list[str]) -> np.ndarray:
    """Contours that do not overlap, by matplotlib: position in `names` + 1; -1 where a centre lies on an edge."""
    data = _dataset(path)
    numbers = {int(item.ROINumber): names.index(item.ROIName) + 1 for item in data.StructureSetROISequence if item.get("ROIName") in names}
    result = np.zeros(shape, int)
    to_index = np.linalg.inv(LPS @ affine)
    grid = np.array(list(np.ndindex(shape[:2])))
    for roi in data.ROIContourSequence:
        for item in (roi.get("ContourSequence") or []) if int(roi.ReferencedROINumber) in numbers else []:
            points = np.array(item.ContourData, float).reshape(-1, 3) @ to_index[:3, :3].T + to_index[:3, 3]
            outline = Outline(np.vstack([points[:, :2], points[:1, :2]]), closed=True)
            inner, outer = (outline.contains_points(grid, radius=radius).reshape(shape[:2]) for radius in (-EDGE_VOXELS, EDGE_VOXELS))
            plane = result[:, :, int(np.rint(points[:, 2].mean()))]
            plane[inner & outer] = numbers[int(roi.ReferencedROINumber)]
            plane[inner ^ outer] = -1
    return result
