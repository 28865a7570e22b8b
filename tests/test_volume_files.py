"""Volumes in two files, units, shear and contradictions: what is read, what is corrected and what is refused."""

import struct
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk
from nibabel.nifti1 import Nifti1Pair
from nibabel.nifti2 import Nifti2Pair

import builders
from builders import write_nifti
from teravox import checks, geometry, manifest, pseudonyms, volumes
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
    before = manifest.digest(manifest.take({"image": str(header)}, pseudonyms.PUBLIC_KEY)[0])
    content = data.read_bytes()
    builders.patch(data, len(content) - 1, bytes([content[-1] ^ 1]))
    assert manifest.digest(manifest.take({"image": str(header)}, pseudonyms.PUBLIC_KEY)[0]) != before
    data.unlink()
    assert manifest.digest(manifest.take({"image": str(header)}, pseudonyms.PUBLIC_KEY)[0]) != before
    data.write_bytes(content)
    assert manifest.digest(manifest.take({"image": str(header)}, pseudonyms.PUBLIC_KEY)[0]) == before


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
