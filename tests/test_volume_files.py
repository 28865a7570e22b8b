"""Volumes in two files, units, shear, bounds and damage: what each kind of file may do, over random files and by examples."""

import gzip
import itertools
import resource
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nibabel.nifti1 import Nifti1Pair
from nibabel.nifti2 import Nifti2Pair

import builders
from builders import write_nifti
from teravox import checks, geometry, manifest, numa, volumes, voxels
from teravox.errors import RejectedCase
from test_volumes import MHA_FIELDS, NOISE, NRRD_FIELDS, VALUES, mha, nrrd, rejected

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
AFFINE = np.array([[0, -0.5, 0, 10], [0.7, 0, 0, -20], [0, 0, 2, 30], [0, 0, 0, 1]], float)
PAIRS = {1: Nifti1Pair, 2: Nifti2Pair}
SINGLES = {1: nib.Nifti1Image, 2: nib.Nifti2Image}
MHD_FIELDS = f"{MHA_FIELDS}\nElementSpacing = 1 2 3"
NHDR_FIELDS = f"{NRRD_FIELDS}\nspace: left-posterior-superior\nspace directions: (1,0,0) (0,2,0) (0,0,3)\nspace origin: (5,6,7)"
LPS = np.diag([-1.0, -2, 3, 1])


def read(path: Path) -> volumes.Volume:
    return volumes.read_volume_file(path)


# Pairs of header and voxels


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("named", ["hdr", "img"])
def test_nifti_pair(tmp_path: Path, version: int, ending: str, named: str) -> None:  # B12
    image = PAIRS[version](NOISE, AFFINE)
    image.header.set_xyzt_units("mm")
    image.to_filename(tmp_path / f"x.img{ending}")
    path = tmp_path / f"x.{named}{ending}"
    volume = read(path)
    np.testing.assert_array_equal(volume.array, NOISE)
    np.testing.assert_allclose(volume.affine, AFFINE, atol=1e-6)
    assert not volume.notes and not volume.corrections
    data = (tmp_path / f"x.img{ending}").read_bytes()
    (tmp_path / f"x.img{ending}").write_bytes(data[: len(data) // 2])
    rejected(tmp_path / f"x.img{ending}")
    (tmp_path / f"x.img{ending}").unlink()
    with pytest.raises(RejectedCase, match=r"missing"):
        read(path)


@pytest.mark.parametrize("version", [1, 2])
def test_nifti_of_either_version(tmp_path: Path, version: int) -> None:
    for order in "<>":
        header = SINGLES[version].header_class(endianness=order)
        header.set_data_dtype(np.dtype(f"{order}i2"))
        header.set_xyzt_units("mm")
        SINGLES[version](VALUES, AFFINE, header).to_filename(tmp_path / "x.nii")
        volume = read(tmp_path / "x.nii")
        assert volume.array.dtype == np.int16 and volume.array.dtype.isnative
        np.testing.assert_array_equal(volume.array, VALUES)
        np.testing.assert_allclose(volume.affine, AFFINE, atol=1e-6)


@pytest.mark.parametrize("kind", ["analyze", "spm99", "magic gone"])
def test_analyze_is_refused_with_the_reason(tmp_path: Path, kind: str) -> None:  # B12
    if kind == "magic gone":
        PAIRS[1](VALUES, AFFINE).to_filename(tmp_path / "x.img")
        builders.patch(tmp_path / "x.hdr", 344, bytes(4))
    else:
        nib.save({"analyze": nib.AnalyzeImage, "spm99": nib.Spm99AnalyzeImage}[kind](VALUES, AFFINE), tmp_path / "x.img")
    for ending in ("hdr", "img"):
        rejected(tmp_path / f"x.{ending}", "Analyze", "left and right", ".mat")


def test_ending_and_magic_agree(tmp_path: Path) -> None:
    Nifti1Pair(VALUES, AFFINE).to_filename(tmp_path / "x.img")
    (tmp_path / "x.hdr").rename(tmp_path / "y.nii")
    rejected(tmp_path / "y.nii", "expected the ending .hdr and .img")
    write_nifti(tmp_path / "z.nii", VALUES).rename(tmp_path / "x.hdr")
    rejected(tmp_path / "x.hdr", "expected the ending .nii")


def pair(folder: Path, kind: str) -> tuple[Path, Path]:
    """A volume of VALUES in two files: the one that is named, and that of its voxels."""
    header, data = folder / f"x.{kind}", folder / {"hdr": "x.img", "mhd": "x.raw", "nhdr": "x.raw"}[kind]
    if kind == "hdr":
        Nifti1Pair(VALUES, AFFINE).to_filename(header)
    else:
        data.write_bytes(VALUES.tobytes("F"))
        header.write_text(f"{MHD_FIELDS}\nElementDataFile = x.raw\n" if kind == "mhd" else f"NRRD0004\n{NHDR_FIELDS}\ndata file: x.raw\n")
    return header, data


@pytest.mark.parametrize("kind", ["hdr", "mhd", "nhdr"])
def test_both_files_of_a_volume_are_its_sources(tmp_path: Path, kind: str) -> None:
    header, data = pair(tmp_path, kind)
    np.testing.assert_array_equal(read(header).array, VALUES)
    assert [path for path, _ in manifest.members(header)] == [header, data]
    if kind == "hdr":
        assert manifest.members(data) == manifest.members(header)
    before = manifest.digest(manifest.take({"image": str(header)})[0])
    content = data.read_bytes()
    builders.patch(data, len(content) - 1, bytes([content[-1] ^ 1]))
    assert manifest.digest(manifest.take({"image": str(header)})[0]) != before
    data.unlink()
    assert manifest.digest(manifest.take({"image": str(header)})[0]) != before
    data.write_bytes(content)
    assert manifest.digest(manifest.take({"image": str(header)})[0]) == before


@pytest.mark.parametrize("kind", ["hdr", "mhd", "nhdr"])
def test_no_link_out_of_the_folder_is_followed(tmp_path: Path, kind: str) -> None:
    (tmp_path / "in").mkdir()
    header, data = pair(tmp_path / "in", kind)
    data.rename(tmp_path / "secret")
    data.symlink_to(tmp_path / "secret")
    rejected(header, "link that leads out of the folder")
    assert [path for path, _ in manifest.members(header)] == [header]
    data.unlink()
    (tmp_path / "secret").rename(tmp_path / "in" / "other")
    data.symlink_to("other")
    np.testing.assert_array_equal(read(header).array, VALUES)
    (tmp_path / "alias").symlink_to(tmp_path / "in")
    np.testing.assert_array_equal(read(tmp_path / "alias" / header.name).array, VALUES)


NAMES = [
    "{folder}/x.raw",
    "../{base}/x.raw",
    "sub/x.raw",
    "..",
    ".",
    "",
    "LIST",
    "list",
    "x%d.raw 1 2 1",
    "x%02d.raw",
    "x.raw\0",
    "C:\\x.raw",
    "none.raw",
]


@pytest.mark.parametrize("name", [*NAMES, "x.mhd"])
def test_data_file_of_a_metaimage(tmp_path: Path, name: str) -> None:
    (tmp_path / "sub").mkdir()
    for place in (tmp_path, tmp_path / "sub"):
        (place / "x.raw").write_bytes(VALUES.tobytes("F"))
    text = name.format(folder=tmp_path, base=tmp_path.name)
    message = rejected(mha(tmp_path / "x.mhd", MHD_FIELDS, text))
    assert not text or text in ("..", ".", "LIST", "list", "x.mhd") or text not in message


@pytest.mark.parametrize("name", [*NAMES, "x.nhdr", "LIST\nx.raw", "LIST 3\nx.raw"])
def test_data_file_of_a_nrrd(tmp_path: Path, name: str) -> None:
    (tmp_path / "x.raw").write_bytes(VALUES.tobytes("F"))
    rejected(nrrd(tmp_path / "x.nhdr", f"{NHDR_FIELDS}\ndata file: {name.format(folder=tmp_path, base=tmp_path.name)}"))


@pytest.mark.parametrize("kind", ["mhd", "nhdr"])
@pytest.mark.parametrize("packed", [False, True])
def test_detached_files_as_others_write_them(tmp_path: Path, kind: str, packed: bool) -> None:
    image = geometry.to_sitk(NOISE, AFFINE)
    sitk.WriteImage(image, str(tmp_path / f"x.{kind}"), packed)
    assert len(list(tmp_path.iterdir())) == 2
    volume = read(tmp_path / f"x.{kind}")
    np.testing.assert_array_equal(volume.array, NOISE)
    np.testing.assert_allclose(volume.affine, AFFINE, atol=1e-5)
    data = manifest.members(tmp_path / f"x.{kind}")[1][0]
    data.write_bytes(data.read_bytes()[:-9])
    with pytest.raises(RejectedCase, match=r"truncated|damaged"):
        read(tmp_path / f"x.{kind}")


@pytest.mark.parametrize("skip", [0, 100, -1])
def test_bytes_before_the_voxels_of_a_data_file(tmp_path: Path, skip: int) -> None:
    (tmp_path / "x.raw").write_bytes(bytes(100 if skip else 0) + VALUES.tobytes("F"))
    np.testing.assert_array_equal(read(nrrd(tmp_path / "x.nhdr", f"{NHDR_FIELDS}\nbyte skip: {skip}\ndata file: ./x.raw", b"")).array, VALUES)
    np.testing.assert_array_equal(read(mha(tmp_path / "x.mhd", f"{MHD_FIELDS}\nHeaderSize = {skip}", "x.raw")).array, VALUES)
    if skip:
        rejected(nrrd(tmp_path / "x.nrrd", f"{NHDR_FIELDS}\nbyte skip: {skip}"), "skips bytes")


def test_big_endian_text_headers(tmp_path: Path) -> None:
    swapped = VALUES.astype(">i2").tobytes("F")
    np.testing.assert_array_equal(read(nrrd(tmp_path / "x.nrrd", NHDR_FIELDS.replace("little", "big"), swapped)).array, VALUES)
    path = mha(tmp_path / "x.mha", MHD_FIELDS.replace("MSB = False", "MSB = True"))
    path.write_bytes(path.read_bytes().replace(VALUES.tobytes("F"), swapped))
    volume = read(path)
    assert volume.array.dtype.isnative
    np.testing.assert_array_equal(volume.array, VALUES)


# Units, shear and contradictions

METRES, MICROMETRES = (1, "metres", 1e-3), (3, "micrometres", 1e3)


@pytest.mark.parametrize(("code", "name", "per_mm"), [METRES, MICROMETRES])
def test_nifti_units_become_mm(tmp_path: Path, code: int, name: str, per_mm: float) -> None:
    def change(image: nib.Nifti1Image) -> None:
        image.header["xyzt_units"] = code + 8  # with seconds
        image.set_qform(image.affine, 1)

    path = write_nifti(tmp_path / "x.nii", VALUES, np.diag([per_mm, per_mm, per_mm, 1]) @ AFFINE, change)
    volume = read(path)
    np.testing.assert_allclose(volume.affine, AFFINE, atol=1e-4)
    np.testing.assert_allclose(volume.affine[:3, 3], sitk.ReadImage(str(path)).GetOrigin() * np.array([-1, -1, 1]), atol=1e-4)  # ITK converts too
    assert volume.corrections == (f"lengths converted from {name} to mm, as xyzt_units says",)


def test_no_unit_is_said(tmp_path: Path) -> None:
    volume = read(write_nifti(tmp_path / "x.nii", VALUES, AFFINE, lambda image: image.header.set_xyzt_units("unknown")))
    assert volume.notes == ("no spatial unit in the header: taken as mm",) and not volume.corrections


@pytest.mark.parametrize(("unit", "factor"), [("mm", 1), ("m", 1e3), ("um", 1e-3), ("µm", 1e-3)])
def test_nrrd_and_metaimage_units_become_mm(tmp_path: Path, unit: str, factor: float) -> None:
    expected = LPS * [[factor], [factor], [factor], [1]]
    expected[:3, 3] = np.array([-5, -6, 7]) * factor
    unitless = nrrd(tmp_path / "y.nrrd", NHDR_FIELDS)
    paths = [nrrd(tmp_path / "x.nrrd", f'{NHDR_FIELDS}\nspace units: "{unit}" "{unit}" "{unit}"')]
    if unit in ("mm", "um"):
        paths.append(mha(tmp_path / "x.mha", f"{MHD_FIELDS}\nOffset = 5 6 7\nDistanceUnits = {unit}"))
    for path in paths:
        volume = read(path)
        np.testing.assert_allclose(volume.affine, expected, rtol=1e-6)
        assert bool(volume.corrections) == (factor != 1)
    np.testing.assert_allclose(read(unitless).affine[:3, 3], [-5, -6, 7])
    assert not read(nrrd(tmp_path / "z.nrrd", f'{NHDR_FIELDS}\nspace units: "" "" ""')).corrections


@pytest.mark.parametrize("units", ['"mm" "mm" "um"', '"cm" "cm" "cm"', "mm mm mm", '"DOE^JOHN" "mm" "mm"'])
def test_units_that_are_none(tmp_path: Path, units: str) -> None:
    path = nrrd(tmp_path / "x.nrrd", f"{NHDR_FIELDS}\nspace units: {units}")
    assert "DOE" not in rejected(path, "expected mm, m or um").removeprefix(str(path))
    rejected(mha(tmp_path / "x.mha", f"{MHD_FIELDS}\nDistanceUnits = cm"), "expected mm, m or um")


@pytest.mark.parametrize("ending", [".nii", ".nrrd"])
@pytest.mark.parametrize("cosine", [0, 1e-7, 1e-4, 9e-4, 2e-3])
def test_small_shear_is_taken_out(tmp_path: Path, ending: str, cosine: float) -> None:  # B4
    sheared = LPS.copy()
    sheared[:3, 1] = 2 * np.array([cosine, -np.sqrt(1 - cosine**2), 0])
    sheared[:3, 3] = 5, 6, 7
    lps = geometry.LPS_FROM_RAS @ sheared
    vectors = " ".join(f"({','.join(f'{value:.9g}' for value in lps[:3, axis])})" for axis in range(3))
    fields = f"{NRRD_FIELDS}\nspace: LPS\nspace directions: {vectors}\nspace origin: ({','.join(map(str, lps[:3, 3]))})"
    path = write_nifti(tmp_path / "x.nii", VALUES, sheared) if ending == ".nii" else nrrd(tmp_path / "x.nrrd", fields)
    if cosine > geometry.ORTHOGONAL_ATOL:
        rejected(path, "not perpendicular", "0.0020")
        return
    volume = read(path)
    assert geometry.shear_of(volume.affine) < checks.ORTHOGONAL_NOISE
    np.testing.assert_allclose(geometry.spacing_of(volume.affine), [1, 2, 3], rtol=1e-6)
    np.testing.assert_allclose(volume.affine[:3, 3], [5, 6, 7])
    np.testing.assert_allclose(volume.affine, sheared, atol=2 * cosine + 1e-6)
    assert [f"{cosine:.2g}" in line for line in volume.corrections] == [True] * (cosine > checks.ORTHOGONAL_NOISE)


def test_nearest_rotation_is_that_of_a_naive_search() -> None:
    """No rotation in a neighbourhood lies nearer to the sheared axes than the one taken."""
    sheared = np.eye(4)
    sheared[:3, :3] = geometry.direction_of(np.array([[1, 8e-4, 0, 0], [0, 1, 5e-4, 0], [3e-4, 0, 1, 0], [0, 0, 0, 1.0]]))
    square, _ = checks.orthogonal(Path("x"), sheared, (4, 5, 6))

    def away(matrix: np.ndarray) -> float:
        return float(np.linalg.norm(matrix - sheared[:3, :3]))

    for axis in range(3):
        for angle in (-1e-4, 1e-4):
            turn, (i, j) = np.eye(3), ((axis + 1) % 3, (axis + 2) % 3)
            turn[i, i] = turn[j, j] = np.cos(angle)
            turn[i, j], turn[j, i] = -np.sin(angle), np.sin(angle)
            assert away(turn @ square[:3, :3]) > away(square[:3, :3])


def test_pixdim_and_sform_in_disagreement_are_refused(tmp_path: Path) -> None:
    path = builders.patch(write_nifti(tmp_path / "x.nii", VALUES), 84, struct.pack("<f", 2.0))
    rejected(path, "in pixdim and", "in sform")
    np.testing.assert_array_equal(read(builders.patch(path, 84, struct.pack("<f", 1.0000005))).affine, np.eye(4))


@pytest.mark.parametrize(
    "fields", [NRRD_FIELDS, f"{NRRD_FIELDS}\nspacings: 1 nan 1", f"{NRRD_FIELDS}\nspacings: 1 0 1", f"{NRRD_FIELDS}\nspacings: x 1 1"]
)
def test_nrrd_without_a_voxel_size_is_refused(tmp_path: Path, fields: str) -> None:  # A13
    rejected(nrrd(tmp_path / "x.nrrd", fields))


@pytest.mark.parametrize(
    "fields",
    [
        MHA_FIELDS,
        f"{MHA_FIELDS}\nElementSpacing = 1 2",
        f"{MHD_FIELDS}\nElementSpacing = 4 5 6",
        f"{MHD_FIELDS}\nelementspacing: 4 5 6",
        f"{MHD_FIELDS}\nOffset = 1 2 3\nPosition = 4 5 6",
        f"{MHD_FIELDS}\nOrientation = 0 1 0 1 0 0 0 0 1",
        MHD_FIELDS.replace("BinaryData = True", "BinaryData = False"),
        MHD_FIELDS.replace("MSB = False", "MSB = Perhaps"),
    ],
)
def test_contradictory_metaimage_is_refused(tmp_path: Path, fields: str) -> None:
    rejected(mha(tmp_path / "x.mha", fields))


def test_trailing_dimensions_of_one_voxel(tmp_path: Path) -> None:  # B10
    for shape in ((4, 5, 6, 1), (4, 5, 6, 1, 1)):
        np.testing.assert_array_equal(read(write_nifti(tmp_path / "x.nii", VALUES.reshape(shape))).array, VALUES)
        text = " ".join(map(str, shape))
        fields = NRRD_FIELDS.replace("dimension: 3", f"dimension: {len(shape)}").replace("4 5 6", text)
        np.testing.assert_array_equal(read(nrrd(tmp_path / "x.nrrd", f"{fields}\nspacings: 1 2 3{' 1' * (len(shape) - 3)}")).array, VALUES)
    four = np.stack([VALUES, VALUES + 1, VALUES + 2], axis=3)[..., None]
    for ending in (".nii", ".nii.gz"):
        path = write_nifti(tmp_path / f"four{ending}", four)
        for index in range(3):
            np.testing.assert_array_equal(volumes.read_volume_file(path, index).array, four[..., index, 0])
    fields = NRRD_FIELDS.replace("dimension: 3", "dimension: 4").replace("4 5 6", "4 5 3 2")
    rejected(nrrd(tmp_path / "y.nrrd", f"{fields}\nspacings: 1 2 3 1"), "4 dimensions")


# Bounds


def test_a_volume_beyond_the_memory_granted_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need = VALUES.size * (2 + 4)
    sitk.WriteImage(geometry.to_sitk(VALUES, np.eye(4)), str(tmp_path / "z.mha"), True)
    paths = [write_nifti(tmp_path / f"x{ending}", VALUES) for ending in (".nii", ".nii.gz")]
    paths += [nrrd(tmp_path / "x.nrrd", NHDR_FIELDS), mha(tmp_path / "x.mha", MHD_FIELDS), tmp_path / "z.mha"]
    for path in paths:
        monkeypatch.setattr(numa, "granted_bytes", lambda: need - 1)
        rejected(path, f"needs {need} bytes", f"{need - 1} are available")
        monkeypatch.setattr(numa, "granted_bytes", lambda: need)
        np.testing.assert_array_equal(read(path).array, VALUES)


def bomb(path: Path, header: bytes, wbits: int) -> None:
    """A header and 8 GB of zeros behind it, compressed to 8 MB."""
    packer = zlib.compressobj(1, wbits=wbits)
    data = packer.compress(header)
    block = bytes(1 << 24)
    with path.open("wb") as stream:
        stream.write(data)
        for _ in range(60):
            stream.write(packer.compress(block))
        stream.write(packer.flush())


def extension(size: int) -> bytes:
    """The header of a NIfTI file with one extension of `size` bytes before its voxels."""
    image = nib.Nifti1Image(VALUES, np.eye(4))
    image.header.set_xyzt_units("mm")
    image.header["vox_offset"] = 352 + size
    image.header["magic"] = b"n+1"
    return image.header.binaryblock + b"\1\0\0\0" + struct.pack("<2i", size, 4)


HOSTILE: dict[str, Callable[[Path], Path]] = {
    "nrrd of 10^15 voxels": lambda folder: nrrd(folder / "x.nrrd", NHDR_FIELDS.replace("4 5 6", "100000 100000 100000")),
    "nrrd of 10^45 voxels": lambda folder: nrrd(folder / "x.nrrd", NHDR_FIELDS.replace("4 5 6", f"{10**15} {10**15} {10**15}")),
    "nrrd of 16 dimensions": lambda folder: nrrd(
        folder / "x.nrrd", NRRD_FIELDS.replace("dimension: 3", "dimension: 16").replace("4 5 6", "99 " * 16) + "\nspacings: 1 1 1"
    ),
    "nrrd blocks": lambda folder: nrrd(folder / "x.nrrd", NHDR_FIELDS.replace("type: short", "type: block\nblock size: 2000000000")),
    "mha of 10^15 voxels": lambda folder: mha(folder / "x.mha", MHD_FIELDS.replace("4 5 6", "100000 100000 100000")),
    "mha of 10^9 dimensions": lambda folder: mha(folder / "x.mha", MHD_FIELDS.replace("NDims = 3", "NDims = 1000000000")),
    "mha of -1 dimensions": lambda folder: mha(folder / "x.mha", MHD_FIELDS.replace("NDims = 3", "NDims = -1")),
    "mha of 10^9 channels": lambda folder: mha(folder / "x.mha", f"{MHD_FIELDS}\nElementNumberOfChannels = 1000000000"),
    "mha with a long line": lambda folder: mha(folder / "x.mha", f"{MHD_FIELDS}\nOffset = {'1 ' * 100000}"),
    "mha without an end": lambda folder: mha(folder / "x.mha", "Comment = x\n" * 200000),
    "nifti with a huge extension": lambda folder: packed(folder / "x.nii.gz", extension(2**30)),
    "nifti of -1 voxels": lambda folder: builders.patch(write_nifti(folder / "x.nii", VALUES), 42, struct.pack("<3h", -4, -5, 6)),
    "nifti-2 of 2^62 voxels": lambda folder: builders.patch(
        _save(nib.Nifti2Image(VALUES, np.eye(4)), folder / "x.nii"), 16, struct.pack("<4q", 3, 2**31, 2**31, 1)
    ),
    "nifti-2 beyond 64 bits": lambda folder: builders.patch(
        _save(nib.Nifti2Image(VALUES, np.eye(4)), folder / "x.nii"), 16, struct.pack("<4q", 3, 2**62, 2**62, 2**62)
    ),
}


def _save(image: Any, path: Path) -> Path:
    image.to_filename(path)
    return path


def packed(path: Path, header: bytes) -> Path:
    bomb(path, header, zlib.MAX_WBITS + 16)
    return path


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers_take_neither_time_nor_memory(tmp_path: Path, name: str) -> None:
    """In a process of its own that may take 1 GB more than its libraries."""
    path = HOSTILE[name](tmp_path)
    code = f"""
import resource, sys
sys.path.insert(0, {str(SCRIPTS)!r})
from pathlib import Path
from teravox import volumes
from teravox.errors import RejectedCase
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + 10**9
resource.setrlimit(resource.RLIMIT_AS, (size, size))
try:
    volumes.read_volume_file(Path({str(path)!r}))
except RejectedCase as error:
    print(error, end="")
print("", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    seconds = time.monotonic() - started
    assert done.returncode == 0 and done.stdout.startswith(str(path)), done.stderr
    assert seconds < 20  # most of it the start of the interpreter; a hang would be far more
    assert int(done.stdout.split()[-1]) < 500_000  # kB


def test_what_lies_behind_the_voxels_is_noted(tmp_path: Path) -> None:
    path = write_nifti(tmp_path / "x.nii", VALUES)
    plain = path.read_bytes()
    path.write_bytes(plain + bytes(7))
    assert read(path).notes == ("7 bytes behind the voxels are not used",)
    path = tmp_path / "x.nii.gz"
    path.write_bytes(gzip.compress(plain) + b"DOE^JOHN")
    assert read(path).notes == ("8 bytes behind the compressed voxels are not used",)
    path.write_bytes(gzip.compress(plain[:400]) + gzip.compress(plain[400:] + bytes(5)))  # members are one file
    volume = read(path)
    assert volume.notes == ("5 bytes behind the voxels are not used",)
    np.testing.assert_array_equal(volume.array, VALUES)
    path = nrrd(tmp_path / "x.nrrd", NHDR_FIELDS, VALUES.tobytes("F") + b"xy")
    assert read(path).notes == ("2 bytes behind the voxels are not used",)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.binary(max_size=3000),
    cuts=st.lists(st.integers(0, 3000), max_size=4),
    level=st.integers(0, 9),
    step=st.integers(1, 700),
    junk=st.binary(max_size=3),
)
def test_unpacking_is_that_of_gzip(tmp_path: Path, data: bytes, cuts: list[int], level: int, step: int, junk: bytes) -> None:
    """Whatever the members and however it is read; what follows the last member is counted."""
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    whole = b"".join(gzip.compress(data[a:b], level) for a, b in itertools.pairwise(places))
    junk = b"" if junk.startswith(voxels.GZIP_MAGIC) else junk
    path = tmp_path / "x.gz"
    path.write_bytes(whole + junk)
    assert gzip.decompress(whole) == data
    with path.open("rb") as file:
        stream = voxels.Unpacked(file)
        found = b""
        while part := stream.read(step):
            found += part
        assert found == data and stream.trailing == len(junk)


# Random NIfTI files against nibabel


def turned(turn: tuple[float, float, float], order: tuple[int, ...], spacing: list[float], origin: list[float]) -> np.ndarray:
    """An orthogonal affine: axes permuted and mirrored by `order` and signs in `spacing`, then turned about each axis (radians)."""
    matrix = np.eye(3)[:, list(order)] * spacing
    for axis, angle in enumerate(turn):
        rotation, (i, j) = np.eye(3), ((axis + 1) % 3, (axis + 2) % 3)
        rotation[i, i] = rotation[j, j] = np.cos(angle)
        rotation[i, j], rotation[j, i] = -np.sin(angle), np.sin(angle)
        matrix = rotation @ matrix
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = matrix, origin
    return affine


ANGLES = st.tuples(*[st.sampled_from([0.0, 0.3, -1.1])] * 3)
EDGES = st.lists(st.floats(0.1, 5).flatmap(lambda edge: st.sampled_from([edge, -edge])), min_size=3, max_size=3)
ORIGINS = st.lists(st.floats(-200, 200), min_size=3, max_size=3)
DTYPES = st.sampled_from(["u1", "i1", "u2", "i2", "u4", "i4", "f4", "f8"])
SLOPES = st.sampled_from([(1.0, 0.0), (1.0, -1024.0), (0.5, 3.0), (-2.0, 0.25), (0.0, 9.0), (1.0, 0.5)])


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    turn=ANGLES, order=st.permutations(range(3)), spacing=EDGES, origin=ORIGINS, code=DTYPES, endian=st.sampled_from("<>"), scale=SLOPES,
    version=st.sampled_from([1, 2]), ending=st.sampled_from([".nii", ".nii.gz", ".img", ".hdr.gz"]),
    forms=st.sampled_from([(1, 0), (0, 1), (2, 1), (4, 4)]),     seed=st.integers(0, 2**31),
)  # fmt: skip
def test_random_nifti_is_what_nibabel_reads(
    tmp_path: Path,
    turn: Any,
    order: Any,
    spacing: Any,
    origin: Any,
    code: str,
    endian: str,
    scale: Any,
    version: int,
    ending: str,
    forms: Any,
    seed: int,
) -> None:
    generator = np.random.default_rng(seed)
    shape = tuple(int(edge) for edge in generator.integers(1, 7, 3))
    dtype = np.dtype(endian + code)
    low, high = (-1e4, 1e4) if dtype.kind == "f" else (float(np.iinfo(dtype).min), float(np.iinfo(dtype).max))
    array = generator.uniform(low, high, shape).astype(dtype)
    affine = turned(turn, tuple(order), spacing, origin)
    single = ending.startswith(".nii")
    kind = (SINGLES if single else PAIRS)[version]
    header = kind.header_class(endianness=endian)
    header.set_data_dtype(dtype)
    header.set_xyzt_units("mm")
    image = kind(array, affine, header)
    image.set_qform(affine, forms[1])
    image.set_sform(affine, forms[0])
    path = tmp_path / f"x{ending}"
    image.to_filename(path)
    slope_at = (112 if version == 1 else 176, "2f" if version == 1 else "2d")
    scaled = path.with_name(path.name.replace(".img", ".hdr"))
    content = bytearray(gzip.decompress(scaled.read_bytes()) if ending.endswith(".gz") else scaled.read_bytes())
    struct.pack_into(f"{endian}{slope_at[1]}", content, slope_at[0], *scale)
    scaled.write_bytes(gzip.compress(bytes(content)) if ending.endswith(".gz") else bytes(content))
    expected = nib.load(path)
    volume = read(path)
    assert volume.array.dtype.isnative and volume.array.shape == shape
    np.testing.assert_allclose(volume.array, expected.get_fdata(), rtol=2e-7, atol=1e-30)
    np.testing.assert_allclose(volume.affine, expected.affine, atol=1e-4)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(flips=st.lists(st.tuples(st.integers(0, 539), st.integers(0, 255)), min_size=1, max_size=6), which=st.integers(0, 3))
def test_a_damaged_nifti_header_gives_a_volume_or_one_line(tmp_path: Path, flips: list[tuple[int, int]], which: int) -> None:
    kind = [nib.Nifti1Image, nib.Nifti2Image, Nifti1Pair, Nifti2Pair][which]
    image = kind(VALUES, AFFINE)
    image.header.set_xyzt_units("mm")
    path = tmp_path / ("x.nii" if which < 2 else "x.hdr")
    image.to_filename(path)
    content = bytearray(path.read_bytes())
    for place, value in flips:
        content[place % min(len(content), 540)] = value
    path.write_bytes(content)
    never_a_traceback(path)


def never_a_traceback(path: Path) -> None:
    try:
        volume = read(path)
    except RejectedCase as error:
        assert "\n" not in str(error) and str(path.parent) in str(error)
    else:
        assert volume.array.ndim == 3 and np.isfinite(volume.affine).all() and geometry.shear_of(volume.affine) < checks.ORTHOGONAL_NOISE


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ending=st.sampled_from([".nrrd", ".mha", ".mhd", ".nhdr"]),
    cut=st.integers(0, 600),
    flips=st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255)), max_size=6),
)
def test_a_damaged_text_header_gives_a_volume_or_one_line(tmp_path: Path, ending: str, cut: int, flips: list[tuple[int, int]]) -> None:
    path = tmp_path / f"x{ending}"
    sitk.WriteImage(geometry.to_sitk(VALUES, AFFINE), str(path))
    content = bytearray(path.read_bytes())
    for place, value in flips:
        content[place % min(len(content), 500)] = value
    path.write_bytes(content[: len(content) - cut % 40])
    never_a_traceback(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ending=st.sampled_from([".nii.gz", ".img.gz", ".nrrd", ".mha", ".mhd"]), place=st.integers(0), bit=st.integers(0, 7), cut=st.booleans())
def test_compressed_voxels_that_changed_or_end_early_are_refused(tmp_path: Path, ending: str, place: int, bit: int, cut: bool) -> None:
    """Wherever in the compressed stream: either a refusal, or the very same voxels (a bit that means nothing, as in gzip's time)."""
    path = tmp_path / f"x{ending}"
    if ending == ".nii.gz":
        write_nifti(path, NOISE)
    elif ending == ".img.gz":
        Nifti1Pair(NOISE, AFFINE).to_filename(path)
    else:
        sitk.WriteImage(geometry.to_sitk(NOISE, AFFINE), str(path), True)
    target = manifest.members(path)[-1][0]
    content = bytearray(target.read_bytes())
    first = 700 if ending in (".nrrd", ".mha") else 0  # damage of the text before is another test's
    place = first + place % (len(content) - first)
    if cut:
        del content[place:]
    else:
        content[place] ^= 1 << bit
    target.write_bytes(content)
    try:
        found = read(path).array
    except RejectedCase:
        return
    assert not cut
    np.testing.assert_array_equal(found, NOISE)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=2000), ending=st.sampled_from([".nii", ".nii.gz", ".hdr", ".img", ".nrrd", ".nhdr", ".mha", ".mhd"]))
def test_random_bytes_are_refused(tmp_path: Path, data: bytes, ending: str) -> None:
    path = tmp_path / f"x{ending}"
    path.write_bytes(data)
    rejected(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4_000_000
