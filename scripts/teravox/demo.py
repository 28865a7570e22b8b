"""The demo cohort: phantoms scanned on grids of many kinds, written as NIfTI volumes or as DICOM series with a DICOM SEG.

The same seed, case count and scale give the same bytes: identifiers are hashes and dates are fixed.
"""

import contextlib
import dataclasses
import gzip
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import highdicom as hd
import nibabel as nib
import numpy as np
import pydicom
from pydicom.dataset import FileMetaDataset
from pydicom.sr.codedict import codes
from pydicom.valuerep import format_number_as_ds
from scipy.spatial.transform import Rotation
from tqdm import tqdm

from teravox import files, geometry, hashing, phantom
from teravox.errors import UserError

COLUMNS = ("case", "patient", *phantom.CHANNELS, "label", "set")
SCALES = (0.5, 3.0)  # below, a case has millions of voxels; above, a voxel is larger than the smallest necrotic core
FIELD_OF_VIEW_MM = 160.0
DATE, TIME = "20200101", "120000"
DECIMALS = 10  # a cosine with its sign and a position below 1000 mm then fit the 16 characters of a DS
SEG_CHANNEL = "t1c"  # the series that a DICOM SEG refers to
PROPERTY_TYPES = {"necrotic_core": codes.SCT.Necrosis, "oedema": codes.SCT.Edema, "enhancing": codes.NCIt.EnhancingLesion}
# ScanningSequence, SequenceVariant, RepetitionTime, EchoTime, InversionTime (ms), SeriesDescription
SEQUENCES = {
    "t1": ("SE", "NONE", 600, 10, None, "T1 SE"),
    "t1c": ("SE", "NONE", 600, 10, None, "T1 SE post contrast"),
    "t2": ("SE", "SK", 5000, 100, None, "T2 TSE"),
    "flair": (["SE", "IR"], "SK", 9000, 120, 2500, "T2 FLAIR"),
}


@dataclasses.dataclass(frozen=True)
class Scan:
    """How one case is scanned and stored.

    spacing_mm : order of the array's axes; axes : where those run to before tilting, such as "RAS"; tilt_degrees : turns about
    the world's R, A and S axes, one after the other; centre_mm : middle of the field of view, RAS+.
    """

    patient: int
    visit: int
    format: str
    spacing_mm: tuple[float, float, float]
    axes: str
    tilt_degrees: tuple[float, float, float] = (0.0, 0.0, 0.0)
    centre_mm: tuple[float, float, float] = (0.0, 0.0, 0.0)
    set: str = "train"


SCANS = (
    Scan(1, 1, "nifti", (2.0, 2.0, 4.0), "RAS"),
    Scan(2, 1, "dicom", (2.5, 2.5, 5.0), "LPS", (8.0, 0.0, 3.0), (1.0, -2.0, 3.0)),
    Scan(3, 1, "nifti", (3.0, 3.0, 3.0), "LPS", (0.0, 5.0, 0.0), (2.0, 0.0, 0.0), "test"),
    Scan(1, 2, "nifti", (2.5, 2.5, 5.0), "RAS", (-12.0, 4.0, 6.0), (-2.0, 1.0, 2.0)),
    Scan(4, 1, "dicom", (3.0, 3.0, 3.0), "PIR", (0.0, 0.0, 7.0), (0.0, 2.0, 0.0)),
    Scan(5, 1, "nifti", (2.0, 2.0, 4.0), "LPS", (15.0, 0.0, 0.0), (0.0, 0.0, 4.0)),
    Scan(4, 2, "nifti", (3.0, 3.0, 3.0), "LAS"),
    Scan(6, 1, "dicom", (2.0, 2.0, 4.0), "LIP", (-6.0, 0.0, 0.0), (1.0, 1.0, -2.0), "test"),
    Scan(7, 1, "nifti", (2.5, 2.5, 5.0), "LSA", (0.0, 9.0, 0.0)),
    Scan(8, 1, "nifti", (1.8, 1.8, 3.6), "RAS", (0.0, 0.0, 20.0), (-1.0, 0.0, 2.0)),
    Scan(6, 2, "dicom", (2.2, 2.2, 4.4), "LPS", (10.0, -5.0, 0.0), (0.0, -1.0, 2.0), "test"),
    Scan(9, 1, "nifti", (2.5, 2.5, 5.0), "PSR", (5.0, 5.0, 0.0), (0.0, 3.0, 1.0)),
)


@dataclasses.dataclass(frozen=True)
class Volumes:
    """One scanned case. images : (x, y, z) int16 by channel; label : (x, y, z) uint8; affine : (4, 4), mm, RAS+."""

    images: dict[str, np.ndarray]
    label: np.ndarray
    affine: np.ndarray


def case_name(number: int) -> str:
    return f"case{number:02d}"


def patient_name(scan: Scan) -> str:
    return f"p{scan.patient:02d}"


def scan_grid(scan: Scan, scale: float) -> tuple[tuple[int, int, int], np.ndarray]:
    """The grid of a scan, its voxels `scale` times as large: shape (x, y, z) and affine (4, 4), mm, RAS+."""
    spacing = scale * np.array(scan.spacing_mm)
    size = np.rint(FIELD_OF_VIEW_MM / spacing).astype(int)
    axes = nib.orientations.inv_ornt_aff(nib.orientations.axcodes2ornt(scan.axes), (1, 1, 1))[:3, :3]
    affine = np.eye(4)
    affine[:3, :3] = Rotation.from_euler("xyz", scan.tilt_degrees, degrees=True).as_matrix() @ axes.T * spacing
    affine[:3, 3] = scan.centre_mm - affine[:3, :3] @ (size - 1) / 2
    return (int(size[0]), int(size[1]), int(size[2])), affine


def scan_volumes(scan: Scan, seed: int, scale: float) -> Volumes:
    shape, affine = scan_grid(scan, scale)
    images, label = phantom.sample_head(seed, scan.patient, scan.visit, shape, affine)
    return Volumes(images, label, affine)


def write_nifti(path: Path, array: np.ndarray, affine: np.ndarray) -> None:
    """Write array (x, y, z) as .nii.gz, sform and qform alike (code 1, scanner); the gzip header has no name and no time."""
    image = nib.Nifti1Image(array, None, dtype=array.dtype)
    image.set_sform(affine, code=1)
    image.set_qform(affine, code=1)
    image.header.set_xyzt_units("mm", "sec")
    path.write_bytes(gzip.compress(image.to_bytes(), compresslevel=4, mtime=0))


def uid(*parts: object) -> str:
    """A DICOM UID that only depends on `parts`: 2.25. and 128 bits of a hash as an integer (PS3.5, B.2)."""
    return f"2.25.{int(hashing.text_digest(files.canonical_json([str(part) for part in parts]))[:32], 16)}"


def decimals(values: np.ndarray) -> list[str]:
    """Numbers as DICOM decimal strings (DS), rounded to DECIMALS: at most 16 characters each; -0 becomes 0."""
    return [format_number_as_ds(round(float(value), DECIMALS) + 0.0) for value in values]


def dicom_series(volumes: Volumes, channel: str, patient: str, key: tuple[object, ...]) -> list[pydicom.Dataset]:
    """A channel as MR Image Storage instances in the order of the slices: array x runs along a row, y down the columns.

    key : what tells this case from all others; the UIDs are made from it.
    """
    spacing = geometry.spacing_of(volumes.affine)
    lps = geometry.LPS_FROM_RAS @ volumes.affine
    direction = geometry.direction_of(lps)
    number = phantom.CHANNELS.index(channel) + 1
    sequence, variant, repetition, echo, inversion, description = SEQUENCES[channel]
    series = []
    for k, plane in enumerate(np.moveaxis(volumes.images[channel], 2, 0)):
        meta = FileMetaDataset()
        meta.MediaStorageSOPClassUID = pydicom.uid.MRImageStorage
        meta.MediaStorageSOPInstanceUID = uid(*key, channel, k)
        meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
        meta.ImplementationClassUID = uid("teravox")
        image = pydicom.Dataset()
        image.file_meta = meta
        image.SOPClassUID, image.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
        image.PatientName, image.PatientID = f"{patient}^", patient  # the caret marks a family name alone (PS3.5, 6.2.1)
        image.PatientBirthDate = image.PatientSex = image.AccessionNumber = image.ReferringPhysicianName = ""
        image.PatientIdentityRemoved, image.DeidentificationMethod = "YES", "Synthetic phantom"
        image.StudyInstanceUID, image.StudyID, image.StudyDate, image.StudyTime = uid(*key), "1", DATE, TIME
        image.SeriesInstanceUID, image.SeriesNumber = uid(*key, channel), number
        image.SeriesDate = image.AcquisitionDate = image.ContentDate = DATE
        image.SeriesTime = image.AcquisitionTime = image.ContentTime = TIME
        image.Modality, image.Manufacturer, image.SeriesDescription = "MR", "teravox", description
        image.ImageType, image.PatientPosition, image.BodyPartExamined = ["ORIGINAL", "PRIMARY", "M", channel.upper()], "HFS", "HEAD"
        image.ScanningSequence, image.SequenceVariant, image.ScanOptions, image.MRAcquisitionType = sequence, variant, "", "2D"
        image.RepetitionTime, image.EchoTime, image.EchoTrainLength, image.MagneticFieldStrength = repetition, echo, 1, 3
        if inversion is not None:
            image.InversionTime = inversion
        image.AcquisitionNumber, image.InstanceNumber = number, k + 1
        image.FrameOfReferenceUID, image.PositionReferenceIndicator = uid(*key, "frame of reference"), ""
        image.ImagePositionPatient = decimals((lps @ [0, 0, k, 1])[:3])
        image.ImageOrientationPatient = decimals(np.concatenate([direction[:, 0], direction[:, 1]]))
        image.PixelSpacing = decimals(spacing[[1, 0]])  # between rows first
        image.SliceThickness, image.SpacingBetweenSlices = decimals(spacing[[2, 2]])
        image.Rows, image.Columns = plane.shape[1], plane.shape[0]
        image.SamplesPerPixel, image.PhotometricInterpretation, image.PixelRepresentation = 1, "MONOCHROME2", 1
        image.BitsAllocated, image.BitsStored, image.HighBit = 16, 16, 15
        image.BurnedInAnnotation = "NO"
        image.PixelData = np.ascontiguousarray(plane.T, "<i2").tobytes()
        series.append(image)
    return series


def dicom_segmentation(label: np.ndarray, source: list[pydicom.Dataset], key: tuple[object, ...]) -> pydicom.Dataset:
    """The label map (x, y, z) as a binary DICOM SEG with a segment for each label, on the slices `source`."""
    descriptions = [
        hd.seg.SegmentDescription(
            segment_number=value,
            segment_label=name,
            segmented_property_category=codes.SCT.MorphologicallyAbnormalStructure,
            segmented_property_type=PROPERTY_TYPES[name],
            algorithm_type=hd.seg.SegmentAlgorithmTypeValues.MANUAL,
            anatomic_regions=[codes.SCT.Brain],
            tracking_uid=uid(*key, "segment", name),
            tracking_id=name,
        )
        for name, value in phantom.LABELS.items()
    ]
    segmentation = hd.seg.Segmentation(
        source_images=source,
        pixel_array=np.ascontiguousarray(label.T),
        segmentation_type=hd.seg.SegmentationTypeValues.BINARY,
        segment_descriptions=descriptions,
        series_instance_uid=uid(*key, "label"),
        series_number=len(phantom.CHANNELS) + 1,
        sop_instance_uid=uid(*key, "label", 0),
        instance_number=1,
        manufacturer="teravox",
        manufacturer_model_name="phantom",
        software_versions="1",
        device_serial_number="1",
        content_label="TUMOUR",
        content_date=DATE,
        content_time=TIME,
        series_date=DATE,
        series_time=TIME,
        series_description="Tumour",
    )
    # highdicom stamps the time of writing and draws a UID for the order of the frames: both would differ in each run.
    segmentation.InstanceCreationDate, segmentation.InstanceCreationTime = DATE, TIME
    organization = uid(*key, "label", "dimensions")
    for item in [*segmentation.DimensionOrganizationSequence, *segmentation.DimensionIndexSequence]:
        item.DimensionOrganizationUID = organization
    for item in segmentation.get("ContributingEquipmentSequence", []):
        item.ContributionDateTime = DATE + TIME
    return segmentation


def source_paths(case: str, file_format: str) -> dict[str, str]:
    """Path of each channel (a file, or the folder of a DICOM series) and of the label, relative to the cohort's folder."""
    if file_format == "dicom":
        return {**{channel: f"{case}/{channel}" for channel in phantom.CHANNELS}, "label": f"{case}/label.dcm"}
    return {role: f"{case}/{role}.nii.gz" for role in (*phantom.CHANNELS, "label")}


@contextlib.contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder beside `folder`; when the block ends well it takes the place of `folder`, if not it is removed."""
    temporary = folder.with_name(f".writing-{os.getpid()}-{folder.name}")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        if folder.exists():
            shutil.rmtree(folder)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_case(folder: Path, scan: Scan, volumes: Volumes, key: tuple[object, ...]) -> None:
    """Write the files of one case into `folder`, which takes the place of an earlier one. key : as for `dicom_series`."""
    with replaced_folder(folder) as temporary:
        if scan.format == "nifti":
            for role, array in {**volumes.images, "label": volumes.label}.items():
                write_nifti(temporary / f"{role}.nii.gz", array, volumes.affine)
            return
        for channel in phantom.CHANNELS:
            series = dicom_series(volumes, channel, patient_name(scan), key)
            (temporary / channel).mkdir()
            for image in series:
                image.save_as(temporary / channel / f"{image.InstanceNumber:04d}.dcm", enforce_file_format=True)
            if channel == SEG_CHANNEL:
                dicom_segmentation(volumes.label, series, key).save_as(temporary / "label.dcm", enforce_file_format=True)


def case_table(out: str, count: int) -> str:
    """The case table of the first `count` cases as text; paths begin with `out`."""
    rows: list[tuple[str, ...]] = [COLUMNS]
    for number, scan in enumerate(SCANS[:count], start=1):
        paths = source_paths(case_name(number), scan.format)
        prefixed = [f"{out.rstrip('/') or '/'}/{paths[role]}" for role in (*phantom.CHANNELS, "label")]
        rows.append((case_name(number), patient_name(scan), *prefixed, scan.set))
    return "".join("\t".join(row) + "\n" for row in rows)


def write_cohort(out: str, seed: int = 2020, count: int = len(SCANS), scale: float = 1.0) -> None:
    """Write the first `count` cases, cases.tsv and, last, cohort.json below `out`. Raises UserError on a wrong argument."""
    if not 1 <= count <= len(SCANS):
        raise UserError(f"--cases: found {count}, expected 1 to {len(SCANS)}")
    if not SCALES[0] <= scale <= SCALES[1]:
        raise UserError(f"--scale: found {scale}, expected {SCALES[0]} to {SCALES[1]}")
    if seed < 0:
        raise UserError(f"--seed: found {seed}, expected 0 or more")
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: cannot be made ({error.strerror}); expected a folder, choose another --out") from None
    (folder / "cohort.json").unlink(missing_ok=True)
    cases = {}
    for number, scan in enumerate(tqdm(SCANS[:count], desc="demo cohort", unit="case"), start=1):
        case = case_name(number)
        volumes = scan_volumes(scan, seed, scale)
        write_case(folder / case, scan, volumes, (seed, scale, case))
        written = sorted(path for path in (folder / case).rglob("*") if path.is_file())
        cases[case] = {
            "patient": patient_name(scan),
            "format": scan.format,
            "shape": list(volumes.label.shape),
            "spacing": [round(float(value), 6) for value in geometry.spacing_of(volumes.affine)],
            "voxels": {name: int((volumes.label == value).sum()) for name, value in phantom.LABELS.items()},
            "files": {path.relative_to(folder).as_posix(): hashing.file_digest(path) for path in written},
        }
    files.write_text(folder / "cases.tsv", case_table(out, count))
    files.write_json(folder / "cohort.json", {"seed": seed, "scale": scale, "cases": cases})
