"""Files of one volume: what is read, and what is refused with one line. Right values are those written by the test."""

import gzip
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk

import builders
from builders import write_nifti
from teravox import geometry, labels, store, volumes
from teravox.errors import RejectedCase

VALUES = np.arange(120, dtype=np.int16).reshape(4, 5, 6)
LABELS = (np.arange(120) % 4).reshape(4, 5, 6).astype(np.uint16)
NOISE = np.random.default_rng(7).integers(0, 9999, (20, 20, 20)).astype(np.int16)  # does not compress
NRRD_FIELDS = "type: short\ndimension: 3\nsizes: 4 5 6\nendian: little\nencoding: raw"
MHA_FIELDS = (
    "ObjectType = Image\nNDims = 3\nBinaryData = True\nBinaryDataByteOrderMSB = False\nElementType = MET_SHORT\nDimSize = 4 5 6\n"
    "TransformMatrix = 1 0 0 0 1 0 0 0 1"
)
PATCHES: dict[str, tuple[int, str, tuple[Any, ...], str]] = {  # a field of the NIfTI-1 header: offset, format, values, what the message says
    "dim huge": (40, "4h", (3, 32767, 32767, 32767), "truncated"),
    "dim zero": (42, "h", (0,), "at least one voxel"),
    "dim negative": (42, "h", (-4,), "at least one voxel"),
    "no dimensions": (40, "h", (0,), "expected one 3D volume"),
    "nine dimensions": (40, "h", (9,), "not readable"),
    "seven dimensions": (40, "8h", (7, 4, 5, 6, 0, 0, 0, 0), "expected one 3D volume"),
    "datatype 0": (70, "h", (0,), "data code 0"),
    "datatype unknown": (70, "h", (9999,), "data code 9999"),
    "datatype bits": (70, "2h", (1, 1), "data code 1"),
    "pixdim zero": (80, "f", (0.0,), "pixdim"),
    "pixdim negative": (80, "f", (-1.0,), "pixdim"),
    "pixdim NaN": (80, "f", (np.nan,), "pixdim"),
    "voxels in the header": (108, "f", (0.0,), "inside the header"),
    "voxels far behind": (108, "f", (1e9,), "truncated"),
    "voxels one byte late": (108, "f", (353.0,), "truncated"),
    "voxels at NaN": (108, "f", (np.nan,), "begin at byte nan"),
    "voxels at infinity": (108, "f", (np.inf,), "begin at byte inf"),
    "voxels before the file": (108, "f", (-16.0,), "not readable"),
    "voxels one byte into the header": (108, "f", (1.0,), "vox offset 1 too low"),
    "voxels at a part of a byte": (108, "f", (352.5,), "expected a whole number"),
    "qform code": (252, "h", (7,), "qform_code is 7"),
    "sform code": (254, "h", (-1,), "sform_code is -1"),  # readers differ in whether they use it
    "another sform code": (254, "h", (9,), "sform_code is 9"),
    "end of the magic": (344, "4s", (b"n+1\x07",), "the end of its NIfTI magic"),
    "version in the magic": (344, "4s", (b"n+4\0",), "the end of its NIfTI magic"),
    "intercept NaN": (112, "2f", (2.0, np.nan), "intercept"),
    "metres": (123, "B", (1,), "correct the unit code"),
    "no unit": (123, "B", (5,), "spatial unit code 5"),
    "seconds in place of mm": (123, "B", (7,), "spatial unit code 7"),
    "affine NaN": (280, "f", (np.nan,), "affine"),
    "affine infinite": (292, "f", (np.inf,), "affine"),
    "affine zero": (280, "12f", (0.0,) * 12, "affine"),
    "affine singular": (280, "12f", (1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 1, 0), "not perpendicular"),
    "voxels of 1e30 mm": (280, "f", (1e30,), "affine"),
    "origin at 1e30 mm": (292, "f", (1e30,), "affine"),
    "magic": (344, "4s", (b"xxxx",), "not readable"),
}


def rejected(path: Path, *words: str, read: Callable[[Path], object] = volumes.read_volume_file) -> str:
    """The message of a refusal: one line that begins with the file and contains `words`."""
    with pytest.raises(RejectedCase) as caught:
        read(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    for word in words:
        assert word in message
    return message


def nrrd(path: Path, fields: str, data: bytes | None = None) -> Path:
    path.write_bytes(f"NRRD0004\n{fields}\n\n".encode() + (VALUES.tobytes("F") if data is None else data))
    return path


def mha(path: Path, fields: str, place: str = "LOCAL") -> Path:
    path.write_bytes(f"{fields}\nElementDataFile = {place}\n".encode() + VALUES.tobytes("F"))
    return path


@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.uint16, np.int32, np.uint32, np.float32])
def test_types_are_kept(tmp_path: Path, ending: str, dtype: type) -> None:
    volume = volumes.read_volume_file(write_nifti(tmp_path / f"x{ending}", VALUES.astype(dtype)))
    assert volume.array.dtype == dtype
    np.testing.assert_array_equal(volume.array, VALUES)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_integers_of_eight_bytes_become_the_smallest_type(tmp_path: Path, dtype: type) -> None:  # B14
    for offset, expected in ((0, np.int16), (40000, np.int32), (2**40, np.float32)):
        array: np.ndarray = VALUES.astype(dtype) + dtype(offset)
        volume = volumes.read_volume_file(write_nifti(tmp_path / "x.nii", array))
        assert volume.array.dtype == expected
        np.testing.assert_array_equal(volume.array, array.astype(expected))


def test_double_precision_becomes_single(tmp_path: Path) -> None:
    volume = volumes.read_volume_file(write_nifti(tmp_path / "x.nii", VALUES + 0.1))
    assert volume.array.dtype == np.float32
    np.testing.assert_array_equal(volume.array, (VALUES + 0.1).astype(np.float32))


def test_what_overflows_single_precision_is_refused_as_infinite(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    volume = volumes.read_volume_file(write_nifti(tmp_path / "x.nii", VALUES * 1e300))
    with pytest.raises(RejectedCase, match="119 voxels are NaN or infinite"):
        volumes.check_intensities(volume.array, "x")
    assert not recwarn.list


def test_big_endian_is_read_natively(tmp_path: Path) -> None:  # B11
    header = nib.Nifti1Header(endianness=">")
    header.set_data_dtype(">i2")
    nib.Nifti1Image(VALUES, np.eye(4), header).to_filename(tmp_path / "x.nii")
    volume = volumes.read_volume_file(tmp_path / "x.nii")
    assert volume.array.dtype.isnative
    np.testing.assert_array_equal(volume.array, VALUES)


@pytest.mark.parametrize(("slope", "intercept"), [(2.0, -1.0), (0.001, 0.0), (-1.0, 0.0), (1.0, 5.0), (1.0, -1024.0), (1.0, 0.5)])
def test_scale_factor(tmp_path: Path, slope: float, intercept: float) -> None:
    path = builders.patch(write_nifti(tmp_path / "x.nii", VALUES), 112, struct.pack("<2f", slope, intercept))
    volume = volumes.read_volume_file(path)
    np.testing.assert_allclose(volume.array, VALUES * np.float64(np.float32(slope)) + intercept, rtol=1e-6)
    assert np.issubdtype(volume.array.dtype, np.integer) == (slope == 1 and intercept == round(intercept))
    np.testing.assert_allclose(volume.array, nib.load(path).get_fdata(), rtol=1e-6)


@pytest.mark.parametrize(("slope", "intercept"), [(0.0, 5.0), (np.nan, 0.0), (np.inf, 0.0)])
def test_scale_factor_that_means_none(tmp_path: Path, slope: float, intercept: float) -> None:
    path = builders.patch(write_nifti(tmp_path / "x.nii", VALUES), 112, struct.pack("<2f", slope, intercept))
    np.testing.assert_array_equal(volumes.read_volume_file(path).array, VALUES)


def test_huge_intercept_is_no_integer_sum(tmp_path: Path) -> None:
    path = builders.patch(write_nifti(tmp_path / "x.nii", VALUES), 112, struct.pack("<2f", 1.0, 1e30))
    np.testing.assert_allclose(volumes.read_volume_file(path).array, np.full(VALUES.shape, 1e30), rtol=1e-6)


@pytest.mark.parametrize("name", PATCHES)
def test_damaged_header_is_refused(tmp_path: Path, name: str) -> None:
    offset, layout, values, word = PATCHES[name]
    path = builders.patch(write_nifti(tmp_path / "x.nii", VALUES), offset, struct.pack(f"<{layout}", *values))
    rejected(path, word)


def test_huge_dimensions_in_a_small_gzip_are_refused(tmp_path: Path) -> None:
    path = builders.patch(write_nifti(tmp_path / "x.nii", VALUES), 40, struct.pack("<4h", 3, 32767, 32767, 32767))
    packed = tmp_path / "x.nii.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    rejected(packed, "truncated", f"{32767**3 * 2 + 352}")


def test_gzip_that_unpacks_to_far_more_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "x.nii.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(write_nifti(tmp_path / "x.nii", VALUES).read_bytes())
        for _ in range(100):
            stream.write(bytes(1 << 20))
    path.write_bytes(path.read_bytes()[:-8])  # reading on to the end would stumble here
    np.testing.assert_array_equal(volumes.read_volume_file(path).array, VALUES)


def test_quaternion_that_is_no_rotation_is_refused(tmp_path: Path) -> None:
    def qform_only(image: nib.Nifti1Image) -> None:
        image.set_sform(np.eye(4), 0)
        image.set_qform(np.eye(4), 1)

    for values in ((np.nan, 0.0, 0.0), (0.9, 0.9, 0.9)):
        path = builders.patch(write_nifti(tmp_path / "x.nii", VALUES, change=qform_only), 256, struct.pack("<3f", *values))
        rejected(path)


def forms(sform: np.ndarray, qform: np.ndarray, sform_code: int = 2, qform_code: int = 1) -> Callable[[nib.Nifti1Image], None]:
    def change(image: nib.Nifti1Image) -> None:
        image.set_sform(sform, sform_code)
        image.set_qform(qform, qform_code)

    return change


def test_sform_and_qform_in_disagreement_are_refused(tmp_path: Path) -> None:  # B1
    sform, qform = np.eye(4), np.diag([-1.0, 1, 1, 1])
    sform[0, 3], qform[0, 3] = 10, 99
    rejected(write_nifti(tmp_path / "x.nii", VALUES, change=forms(sform, qform)), "89 mm", "expected at most 0.001 mm")
    close = sform.copy()
    close[0, 3] += 1e-4
    np.testing.assert_array_equal(volumes.read_volume_file(write_nifti(tmp_path / "y.nii", VALUES, change=forms(sform, close))).affine, sform)
    only = volumes.read_volume_file(write_nifti(tmp_path / "z.nii", VALUES, change=forms(sform, qform, 0, 1)))
    np.testing.assert_allclose(only.affine, qform, atol=1e-6)


def test_no_orientation_is_noted(tmp_path: Path) -> None:
    volume = volumes.read_volume_file(write_nifti(tmp_path / "x.nii", VALUES, change=forms(np.eye(4), np.eye(4), 0, 0)))
    assert len(volume.notes) == 1 and "left and right may be exchanged" in volume.notes[0]


def test_shear(tmp_path: Path) -> None:  # B4
    sheared = np.eye(4)
    sheared[0, 1] = 0.1
    rejected(write_nifti(tmp_path / "x.nii", VALUES, sheared), "not perpendicular", "0.0995")

    def both(image: nib.Nifti1Image) -> None:
        image.set_sform(sheared, 1)
        image.set_qform(sheared, 1, strip_shears=True)

    rejected(write_nifti(tmp_path / "y.nii", VALUES, change=both), "sform and qform differ")


@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
@pytest.mark.parametrize("kept", [0, 100, 348, 0.5, -340, -8, -1])
def test_truncated_file_is_refused(tmp_path: Path, ending: str, kept: float) -> None:  # B9
    path = write_nifti(tmp_path / f"x{ending}", NOISE)
    data = path.read_bytes()
    path.write_bytes(data[: int(kept * len(data)) if kept == 0.5 else int(kept)])
    rejected(path)


def test_flipped_bit_in_gzip_is_refused(tmp_path: Path) -> None:  # B9
    path = write_nifti(tmp_path / "x.nii.gz", NOISE)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    rejected(path, "damaged compressed file")


def test_wrong_ending_is_refused(tmp_path: Path) -> None:
    plain, packed = write_nifti(tmp_path / "x.nii", VALUES).read_bytes(), write_nifti(tmp_path / "x.nii.gz", VALUES).read_bytes()
    (tmp_path / "packed.nii").write_bytes(packed)
    (tmp_path / "plain.nii.gz").write_bytes(plain)
    rejected(tmp_path / "packed.nii", "not readable as NIfTI")
    rejected(tmp_path / "plain.nii.gz", "not a gzip file")


def test_dimensions(tmp_path: Path) -> None:  # B10
    for extra in (1, 2):
        volume = volumes.read_volume_file(write_nifti(tmp_path / "x.nii", VALUES.reshape(4, 5, 6, *[1] * extra)))
        np.testing.assert_array_equal(volume.array, VALUES)
    pair = write_nifti(tmp_path / "pair.nii", np.stack([VALUES, VALUES + 1], axis=3))
    rejected(pair, "4 dimensions (4, 5, 6, 2)")
    np.testing.assert_array_equal(volumes.read_volume_file(pair, 1).array, VALUES + 1)
    rejected(pair, "at least 3 volumes", read=lambda path: volumes.read_volume_file(path, 2))
    rejected(write_nifti(tmp_path / "y.nii", VALUES), "4D file", read=lambda path: volumes.read_volume_file(path, 0))
    rejected(write_nifti(tmp_path / "z.nii", VALUES[..., 0]), "2 dimensions")
    flat = volumes.read_volume_file(write_nifti(tmp_path / "w.nii", VALUES[..., :1]))
    np.testing.assert_array_equal(flat.array, VALUES[..., :1])


def test_long_axis_needs_nifti_2(tmp_path: Path) -> None:  # B13
    array = (np.arange(40000) % 251).astype(np.uint8).reshape(-1, 1, 1)
    nib.save(nib.Nifti2Image(array, np.eye(4)), tmp_path / "x.nii")
    np.testing.assert_array_equal(volumes.read_volume_file(tmp_path / "x.nii").array, array)


def test_voxels_that_are_no_single_number_are_refused(tmp_path: Path) -> None:  # B15
    rgb = np.zeros((4, 5, 6), [("R", "u1"), ("G", "u1"), ("B", "u1")])
    rejected(write_nifti(tmp_path / "rgb.nii", rgb), "one real number per voxel")
    rejected(write_nifti(tmp_path / "complex.nii", VALUES.astype(np.complex64)), "one real number per voxel")
    for ending in (".nrrd", ".mha"):
        path = tmp_path / f"x{ending}"
        sitk.WriteImage(sitk.GetImageFromArray(np.zeros((6, 5, 4, 3), np.uint8), isVector=True), str(path))
        rejected(path, "one real number per voxel")


def test_names_that_are_no_file(tmp_path: Path) -> None:
    (tmp_path / "loop.nii").symlink_to(tmp_path / "loop.nii")
    rejected(tmp_path / "loop.nii", "missing")
    rejected(tmp_path / "no.nii", "missing")
    os.mkfifo(tmp_path / "pipe.nii")
    rejected(tmp_path / "pipe.nii", "empty")
    (tmp_path / "x.txt").write_text("x")
    rejected(tmp_path / "x.txt", "unknown kind of file")
    write_nifti(tmp_path / "x.nii", VALUES)
    (tmp_path / "link.nii").symlink_to("x.nii")
    np.testing.assert_array_equal(volumes.read_volume_file(tmp_path / "link.nii").array, VALUES)


@pytest.mark.parametrize("ending", [".nii", ".nrrd", ".mha"])
def test_name_that_is_not_utf8(tmp_path: Path, ending: str) -> None:  # A22
    source, path = tmp_path / f"x{ending}", Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe" + ending.encode()))
    sitk.WriteImage(geometry.to_sitk(VALUES, np.eye(4)), str(source))
    source.rename(path)
    np.testing.assert_array_equal(volumes.read_volume_file(path).array, VALUES)


@pytest.mark.parametrize("ending", [".nrrd", ".mha", ".nii", ".nii.gz"])
@pytest.mark.parametrize("packed", [False, True])
def test_itk_formats_and_nifti_agree(tmp_path: Path, ending: str, packed: bool) -> None:  # B3
    """One marked voxel lies at one point of the world, whoever wrote the file: LPS (-x, -y, z) of SimpleITK is RAS (x, y, z)."""
    image = sitk.Image([4, 5, 6], sitk.sitkInt16)
    image.SetSpacing((1, 2, 3))
    image.SetOrigin((5, 6, 7))
    image[1, 2, 3] = 9
    sitk.WriteImage(image, str(tmp_path / f"x{ending}"), packed)
    volume = volumes.read_volume_file(tmp_path / f"x{ending}")
    index = np.argwhere(volume.array == 9)
    assert index.tolist() == [[1, 2, 3]]
    x, y, z = image.TransformIndexToPhysicalPoint((1, 2, 3))
    np.testing.assert_allclose(volume.affine @ [*index[0], 1], [-x, -y, z, 1], atol=1e-5)


@pytest.mark.parametrize("ending", [".nrrd", ".mha"])
@pytest.mark.parametrize("packed", [False, True])
def test_damaged_itk_formats_are_refused(tmp_path: Path, ending: str, packed: bool) -> None:
    path = tmp_path / f"x{ending}"
    sitk.WriteImage(sitk.GetImageFromArray(NOISE), str(path), packed)
    data = path.read_bytes()
    path.write_bytes(b"")
    rejected(path)
    for kept in (60, len(data) // 2, len(data) - 30):
        path.write_bytes(data[:kept])
        assert rejected(path) == rejected(path)  # no address, no temporary name
    if packed:
        path.write_bytes(data[:-2000] + bytes([data[-2000] ^ 0xFF]) + data[-1999:])
        rejected(path)


NRRD_REFUSED = {
    "another space": ("space: scanner-xyz\nspace directions: (1,0,0) (0,2,0) (0,0,3)\nspace origin: (5,6,7)", "none of right-anterior-superior"),
    "inches": ('space: LPS\nspace units: "in" "in" "in"\nspace directions: (1,0,0) (0,2,0) (0,0,3)\nspace origin: (5,6,7)', "mm"),
    "sheared": ("space: left-posterior-superior\nspace directions: (1,0.3,0) (0,2,0) (0,0,3)\nspace origin: (5,6,7)", "not perpendicular"),
    "NaN": ("space: left-posterior-superior\nspace directions: (nan,0,0) (0,2,0) (0,0,3)\nspace origin: (5,6,7)", ""),
    "another file": ("data file: x.raw", "another file"),
}


@pytest.mark.parametrize("name", NRRD_REFUSED)
def test_nrrd_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "x.raw").write_bytes(VALUES.tobytes("F"))
    fields, word = NRRD_REFUSED[name]
    rejected(nrrd(tmp_path / "x.nrrd", f"{NRRD_FIELDS}\n{fields}"), word)


def test_nrrd_spaces(tmp_path: Path) -> None:
    fields = "\nspace directions: (1,0,0) (0,2,0) (0,0,3)\nspace origin: (5,6,7)"
    for space, signs in (("right-anterior-superior", [1, 1, 1]), ("left-posterior-superior", [-1, -1, 1]), ("left-anterior-superior", [-1, 1, 1])):
        volume = volumes.read_volume_file(nrrd(tmp_path / "x.nrrd", f"{NRRD_FIELDS}\nspace: {space}{fields}"))
        np.testing.assert_array_equal(volume.array, VALUES)
        expected = np.diag([*np.array(signs) * [1.0, 2, 3], 1])
        expected[:3, 3] = np.array(signs) * [5, 6, 7]
        np.testing.assert_allclose(volume.affine, expected)
    assert "no orientation" in volumes.read_volume_file(nrrd(tmp_path / "y.nrrd", f"{NRRD_FIELDS}\nspacings: 1 2 3")).notes[0]


def test_nrrd_size_beyond_memory_is_refused(tmp_path: Path) -> None:
    rejected(nrrd(tmp_path / "x.nrrd", NRRD_FIELDS.replace("4 5 6", "100000 100000 100000")))


MHA_REFUSED = {
    "spacing zero": ("ElementSpacing = 0 1 1", "spacing"),
    "spacing negative": ("ElementSpacing = -1 1 1", "elementspacing"),
    "scale factor": ("ElementToIntensityFunctionSlope = 2", "store the scaled values"),
    "two channels": ("ElementNumberOfChannels = 2", ""),
}


@pytest.mark.parametrize("name", MHA_REFUSED)
def test_mha_refused(tmp_path: Path, name: str) -> None:
    fields, word = MHA_REFUSED[name]
    rejected(mha(tmp_path / "x.mha", f"{MHA_FIELDS}\n{fields}"), word)


def test_mha_with_voxels_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.raw").write_bytes(VALUES.tobytes("F"))
    rejected(mha(tmp_path / "x.mha", MHA_FIELDS, "x.raw"), "in another file")


def test_mha_read(tmp_path: Path) -> None:
    volume = volumes.read_volume_file(mha(tmp_path / "x.mha", f"{MHA_FIELDS}\nElementSpacing = 1e-1 2 3"))
    np.testing.assert_array_equal(volume.array, VALUES)
    np.testing.assert_allclose(geometry.spacing_of(volume.affine), [0.1, 2, 3], rtol=1e-6)
    sheared = MHA_FIELDS.replace("1 0 0 0 1 0", "1 0.3 0 0 1 0")
    rejected(mha(tmp_path / "y.mha", f"{sheared}\nElementSpacing = 1 1 1"), "not perpendicular")


@pytest.mark.parametrize("ending", [".nii", ".nrrd", ".mha"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_voxels_that_are_not_finite_are_refused(tmp_path: Path, ending: str, value: float) -> None:  # B8
    array = np.ones((6, 6, 6), np.float32)
    array[1, 2, 3], array[0, 0, 0] = value, 2
    path = tmp_path / f"x{ending}"
    if ending == ".nii":
        write_nifti(path, array)
    else:
        sitk.WriteImage(sitk.GetImageFromArray(array), str(path))
    with pytest.raises(RejectedCase, match="x: 1 voxels are NaN or infinite"):
        volumes.check_intensities(volumes.read_volume_file(path).array, "x")


def test_constant_image_is_refused() -> None:
    with pytest.raises(RejectedCase, match="all voxels are 7"):
        volumes.check_intensities(np.full((2, 2, 2), 7), "x")


def as_label(array: np.ndarray, allowed: tuple[int, ...] = (1, 2, 3)) -> np.ndarray:
    return labels.as_label(array, list(allowed), "x")


def test_labels_through_a_scale_factor(tmp_path: Path) -> None:  # B5
    write_nifti(tmp_path / "x.nii", LABELS)
    image = nib.load(tmp_path / "x.nii")
    nib.save(nib.Nifti1Image(image.get_fdata(), image.affine, image.header), tmp_path / "y.nii")
    read = volumes.read_volume_file(tmp_path / "y.nii").array
    assert np.issubdtype(read.dtype, np.floating)
    label = as_label(read)
    assert label.dtype == np.uint8
    np.testing.assert_array_equal(label, LABELS)


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int8, np.int16, np.uint32, np.int64, np.float32, np.float64])
def test_label_types(dtype: type) -> None:
    array: np.ndarray = (LABELS % 2).astype(dtype)
    label = as_label(array)
    assert label.dtype == np.uint8
    np.testing.assert_array_equal(label, LABELS % 2)


def test_labels_nearly_whole() -> None:
    np.testing.assert_array_equal(as_label((LABELS * 0.999999).astype(np.float32)), LABELS)
    with pytest.raises(RejectedCase, match="not whole numbers"):
        as_label(LABELS * 0.99)


@pytest.mark.parametrize(
    ("value", "words"), [(300, "label value 300,"), (-1, "label value -1,"), (1e30, "label value 1e"), (np.nan, "NaN"), (np.inf, "infinite")]
)
def test_label_values_that_are_not_expected(value: float, words: str, recwarn: pytest.WarningsRecorder) -> None:
    with pytest.raises(RejectedCase, match="expected 0, 1, 2, 3") as caught:
        as_label(np.where(LABELS == 2, value, LABELS.astype(float)))
    assert words in str(caught.value)
    assert not recwarn.list


def test_large_label_values_need_two_bytes() -> None:
    label = as_label(LABELS * 300, (300, 600, 900))
    assert label.dtype == np.uint16
    np.testing.assert_array_equal(label, LABELS * 300)


@pytest.mark.parametrize(("ignore", "dtype"), [(9, np.uint8), (255, np.uint8), (256, np.uint16), (65535, np.uint16)])
@pytest.mark.parametrize("source", [np.uint16, np.float32])
def test_voxels_to_ignore_keep_their_value(ignore: int, dtype: type, source: type) -> None:
    array: np.ndarray = np.where(LABELS == 2, ignore, LABELS).astype(source)
    label = labels.as_label(array, [1, 3], "x", ignore)
    assert label.dtype == dtype
    np.testing.assert_array_equal(label, array)
    assert labels.as_label(LABELS % 2, [1, 3], "x", ignore).dtype == dtype  # whether or not one is there
    with pytest.raises(RejectedCase, match=f"label value {ignore}, expected 0, 1, 3 "):
        labels.as_label(array, [1, 3], "x")
    with pytest.raises(RejectedCase, match=f"label value 2, expected 0, 1, 3, {ignore} "):
        labels.as_label(LABELS, [1, 3], "x", ignore)


def test_written_file_is_read_back(tmp_path: Path) -> None:
    affine = np.diag([0.5, 0.7, 2, 1])
    affine[:3, 3] = 1, 2, 3
    for ending in (".nii", ".nii.gz"):
        path = tmp_path / f"x{ending}"
        store.write(path, VALUES, affine)
        volume = volumes.read_volume_file(path)
        np.testing.assert_array_equal(volume.array, VALUES)
        np.testing.assert_allclose(volume.affine, affine, atol=1e-6)
        first = path.read_bytes()
        store.write(path, VALUES, affine)
        assert path.read_bytes() == first  # B20
    assert sorted(member.name for member in tmp_path.iterdir()) == ["x.nii", "x.nii.gz"]


@pytest.mark.parametrize("line", ["\0", "Comment = DOE\x01JOHN", "Comment = a\nJOHN DOE", "0 1 0 1 0 0 0 0 1", "ElementSpacing = 1 2 3\x00"])
def test_lines_that_are_no_text_or_no_field(tmp_path: Path, line: str) -> None:
    """MetaIO and others make different things of them."""
    for path in (mha(tmp_path / "x.mha", f"{MHA_FIELDS}\n{line}\nElementSpacing = 1 2 3"), nrrd(tmp_path / "x.nrrd", f"{line}\n{NRRD_FIELDS}")):
        if line.startswith("Comment") and "\n" not in line and path.suffix == ".nrrd":
            continue
        message = rejected(path, "a line of its header")
        assert "DOE" not in message


@pytest.mark.parametrize(
    ("line", "words"),
    [("CompressedData = 1", "neither True nor False"), ("CompressedData = True\nCompressedDataSize = 7", "expected what its header says")],
)
def test_compression_that_is_contradicted(tmp_path: Path, line: str, words: str) -> None:
    rejected(mha(tmp_path / "x.mha", f"{MHA_FIELDS}\nElementSpacing = 1 2 3\n{line}"), words)


def test_fields_in_another_order_than_the_format_prescribes(tmp_path: Path) -> None:
    """NRRD's dimension stands before what is given for each axis, and MetaImage's NDims; readers need it to tell where those end."""
    lines = NRRD_FIELDS.splitlines()
    assert lines[1] == "dimension: 3"
    rejected(nrrd(tmp_path / "x.nrrd", "\n".join([lines[0], *lines[2:], lines[1], "spacings: 1 2 3"])), "not readable")
    assert MHA_FIELDS.splitlines()[1] == "NDims = 3"
    first, dimensions, *others = f"{MHA_FIELDS}\nElementSpacing = 1 2 3".splitlines()
    rejected(mha(tmp_path / "x.mha", "\n".join([first, *others, dimensions])), "not readable")


def test_a_missing_origin_is_said(tmp_path: Path) -> None:
    note = "no origin in the header: taken as 0"
    fields = f"{MHA_FIELDS}\nElementSpacing = 1 2 3"
    assert note in volumes.read_volume_file(mha(tmp_path / "x.mha", fields)).notes
    assert note not in volumes.read_volume_file(mha(tmp_path / "x.mha", f"{fields}\nOffset = 0 0 0")).notes
    fields = f"{NRRD_FIELDS}\nspace: LPS\nspace directions: (1,0,0) (0,2,0) (0,0,3)"
    assert note in volumes.read_volume_file(nrrd(tmp_path / "x.nrrd", fields)).notes
    assert note not in volumes.read_volume_file(nrrd(tmp_path / "x.nrrd", f"{fields}\nspace origin: (0,0,0)")).notes


@pytest.mark.parametrize(("end", "right"), [(b"\r\n\x1a\n", True), (bytes(4), True), (b"\n\n\x1a\n", False), (b"\r\n\x1a\r", False)])
def test_line_ends_of_a_nifti_2_header(tmp_path: Path, end: bytes, right: bool) -> None:
    """They stand there to show whether a transfer as text changed the file."""
    nib.Nifti2Image(VALUES, np.eye(4)).to_filename(tmp_path / "x.nii")
    path = builders.patch(tmp_path / "x.nii", 8, end)
    if right:
        np.testing.assert_array_equal(volumes.read_volume_file(path).array, VALUES)
    else:
        rejected(path, "the end of its NIfTI magic")


def test_a_field_that_nrrd_does_not_have(tmp_path: Path) -> None:
    """It may be a damaged one that matters; free text stands under ':='."""
    rejected(nrrd(tmp_path / "x.nrrd", f"{NRRD_FIELDS}\nspacings: 1 2 3\nspace orihin: (1,2,3)"), "none of the NRRD format's")
    every = 'content: x\nold min: 0\noldmax: 1\nmin: 0\nsample units: HU\ncenters: cell cell cell\nlabels: "x" "y" "z"\nDOE:=JOHN'
    volume = volumes.read_volume_file(nrrd(tmp_path / "x.nrrd", f"{NRRD_FIELDS}\nspacings: 1 2 3\n{every}"))
    np.testing.assert_array_equal(volume.array, VALUES)


@pytest.mark.parametrize("key", ["elementSpacing", "Element Spacing", "ELEMENTSPACING"])
def test_a_key_that_metaio_does_not_know(tmp_path: Path, key: str) -> None:
    """It would take 1 mm for the voxels' edges."""
    path = mha(tmp_path / "x.mha", f"{MHA_FIELDS}\n{key} = 4 5 6")
    assert sitk.ReadImage(str(path)).GetSpacing() == (1, 1, 1)
    rejected(path, "'ElementSpacing' of its header is spelled otherwise")
