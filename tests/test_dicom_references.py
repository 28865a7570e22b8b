"""Every DICOM series among the real data, with what must come of it: a table, compared with the reference that lies beside each.

References: dcm2niix's (transfer_syntaxes, two_echoes), the data sets' own (vendor_mini), the scanner's export (seven_series_one_folder).
"""

from pathlib import Path
from typing import Any, NamedTuple

import nibabel as nib
import numpy as np
import pytest

from dicom_reading import NO_RULES, OPTIONS
from teravox import geometry
from teravox.dicom import headers, sources
from teravox.dicom import series as reading
from teravox.errors import RejectedCase

WORLD_ATOL_MM = 1e-3  # between corners of a volume and of its reference


class Row(NamedTuple):
    """source : below the data's folder; rules : of a channel; verdict : "ok", "corrected", or the reason it is rejected for.

    reference : a NIfTI file; part : its volume, or the field of a colour; values_only : its affine is known to be off.
    """

    source: str
    rules: dict[str, Any]
    verdict: str
    reference: str = ""
    part: int | str | None = None
    values_only: bool = False


MINI, SEVEN = "vendor_mini", "seven_series_one_folder"
PHILIPS = {"T1": 1, "T2": 1, "T2-interleaved": 1, "T2_": 2, "T2_-interleaved": 2}  # volumes in the scanner's own export
TABLE = [
    *(Row(f"transfer_syntaxes/In/{number}.dcm", {}, "ok", f"transfer_syntaxes/Ref/{number}.nii") for number in range(1, 10)),
    *(Row("transfer_syntaxes/In", {"volume": number}, "ok", f"transfer_syntaxes/Ref/{number}.nii") for number in (1, 9)),
    *(Row("two_echoes/In/Siemens/VE11", {"echo": echo}, "ok", f"two_echoes/Ref/Siemens_pd+t2_tse_sag_ISO_1.8mm_3_e{echo}.nii") for echo in (1, 2)),
    Row("two_echoes/In/Siemens/VE11", {}, "found 2 volume(s) of 1 series"),
    *(
        Row(f"{SEVEN}/DICOM/{name}.dcm", {"volume": number}, "ok", f"{SEVEN}/NIFTI/{name}.nii.gz", number - 1, True)
        for name, count in PHILIPS.items()
        for number in range(1, count + 1)
    ),
    *(Row(f"{SEVEN}/DICOM/fieldmap.dcm", {"volume": number}, "ok") for number in (1, 2)),
    Row(f"{SEVEN}/DICOM/DTI.dcm", {"b_value": 0}, "ok"),
    *(Row(f"{SEVEN}/DICOM/DTI.dcm", {"b_value": 1000, "volume": number}, "ok") for number in range(1, 8)),
    Row(f"{SEVEN}/DICOM", {}, "found 17 volume(s) of 7 series"),
    Row("seg_ct_liver/segmentations/ct-3slice", {}, "corrected"),
    *(Row(f"seg_ct_liver/segmentations/{size}/{kind}", {}, "ok") for size in ("23x38x3", "24x38x3") for kind in ("image", "multiframe")),
    Row("seg_highdicom/CT2", {}, "slice gap 202.500 mm, expected 1.250 mm"),
    Row("ct_body_j2k/example_ct_dicom", {}, "ok"),
    Row("rtstruct_two_slices/mock_data", {}, "corrected"),
    Row("rtstruct_two_slices/oriented_data", {}, "ok"),
    *(Row(f"{MINI}/{name}/001", {}, "ok") for name in ("anatomical", "ge/anatomical", "philips/anatomical", "philips_enhanced/anatomical")),
    Row(f"{MINI}/generic/anatomical/002_non_isotropic", {}, "ok"),
    *(
        Row(f"{MINI}/{name}", {}, "ok", f"{MINI}/{name}_ground_truth.nii.gz")
        for name in (
            *(f"generic/compressed_{syntax}/001" for syntax in ("j2k", "jpeg", "jpegls", "rle")),
            *("hitachi/anatomical/001", "hitachi/anatomical/001_implicit", "hyperfine/anatomical/001"),
        )
    ),
    *(
        Row(f"{MINI}/generic/rgb/001", {"component": colour}, "ok", f"{MINI}/generic/rgb/001_ground_truth.nii.gz", colour[0].upper())
        for colour in ("red", "green", "blue")
    ),
    Row(f"{MINI}/generic/rgb/001", {}, "component (blue, green, red)"),
    Row(f"{MINI}/ge/anatomical/001_single_slice", {}, "found 1 slice, expected at least 2"),
    Row(f"{MINI}/failing/gantrytilting/001", {}, "across their normal for 4.851 mm along it (gantry tilt)"),
    Row(f"{MINI}/failing/notavolume/001", {}, "found 4 single slices"),
    Row(f"{MINI}/failing/slicecount/001", {}, "found 2 slices 1.000 mm apart, and neither SliceThickness nor SpacingBetweenSlices says so"),
    Row(f"{MINI}/failing/sliceincrement/001", {}, "slice gap 10.000 mm, expected 5.000 mm"),
    Row(f"{MINI}/failing/sliceincrement/002", {}, "slice gap 1.499 mm, expected 0.750 mm"),
    Row(f"{MINI}/failing/sliceorientation/001", {}, "they differ in orientation (axial, sagittal)"),
]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.source} {row.rules or ''}")
def test_series(shared: Path, row: Row) -> None:
    root = shared / "data/dicom"
    rules = NO_RULES | row.rules
    if row.verdict not in {"ok", "corrected"}:
        with pytest.raises(RejectedCase) as caught:
            reading.read_series(root / row.source, rules, OPTIONS)
        assert row.verdict in str(caught.value) and str(caught.value).startswith(str(root / row.source))
        return
    volume = reading.read_series(root / row.source, rules, OPTIONS)
    assert ("corrected" if volume.corrections else "ok") == row.verdict, volume.corrections
    assert volume.checked_by and volume.array.min() < volume.array.max()
    if row.reference:
        array, affine = geometry.to_canonical(volume.array, volume.affine)
        image = nib.load(root / row.reference)
        values = np.asanyarray(image.dataobj)
        if isinstance(row.part, str):
            values = values[row.part]
        elif row.part is not None:
            values = values.reshape(*values.shape[:3], -1)[..., row.part]
        expected, grid = geometry.to_canonical(values, image.affine)
        if row.values_only:  # scaled anew by the exporting software
            np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-5 * expected.max())
        else:
            np.testing.assert_array_equal(array, expected)
            assert geometry.grid_difference(grid, affine, array.shape) * geometry.spacing_of(grid).max() < WORLD_ATOL_MM


def test_every_image_is_in_the_table(shared: Path) -> None:
    root = shared / "data/dicom"
    listed = {path for row in TABLE for path in ([root / row.source] if (root / row.source).is_file() else sources.walk(root / row.source))}
    for path in sources.walk(root):
        if headers.is_dicom_file(path) and headers.read_header(path).kind == "image":
            assert path in listed, path


def test_every_reference_is_in_the_table(shared: Path) -> None:
    """But for those of what is rejected, and the export of the field map, see below."""
    root = shared / "data/dicom"
    found = {path.relative_to(root).as_posix() for name in ("Ref/*.nii", "NIFTI/*.nii.gz", "*_ground_truth.nii.gz") for path in root.rglob(name)}
    used = {row.reference for row in TABLE}
    assert {path for path in found - used if "failing" not in path} == {f"{SEVEN}/NIFTI/fieldmap.nii.gz"}


def test_export_of_the_field_map_mixes_two_volumes(shared: Path) -> None:
    """The exporting software took every second frame for a slice: each of its planes is one of magnitude or field, in no order."""
    root = shared / "data/dicom" / SEVEN
    image = nib.load(root / "NIFTI/fieldmap.nii.gz")
    exported, _ = geometry.to_canonical(np.asanyarray(image.dataobj), image.affine)
    read = [reading.read_series(root / "DICOM/fieldmap.dcm", NO_RULES | {"volume": number}, OPTIONS) for number in (1, 2)]
    planes = [geometry.to_canonical(volume.array, volume.affine)[0][..., number] for volume in read for number in range(10)]
    likeness = np.corrcoef([*(plane.ravel() for plane in planes), *(exported[..., number].ravel() for number in range(10))])[20:, :20]
    best = likeness.argmax(axis=1)
    assert (likeness.max(axis=1) > 0.9999).all() and len(set(best)) == 10
    assert {number // 10 for number in best} == {0, 1}
