"""Small DICOM series, DICOM SEG and NIfTI files made in code, each with the values that reading it must give."""

import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import highdicom as hd
import nibabel as nib
import numpy as np
import pydicom
import SimpleITK as sitk
from pydicom.dataset import FileMetaDataset
from pydicom.sequence import Sequence as DicomSequence
from pydicom.sr.codedict import codes
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

CT_STORAGE = "1.2.840.10008.5.1.4.1.1.2"
MR_STORAGE = "1.2.840.10008.5.1.4.1.1.4"
ENHANCED_CT_STORAGE = "1.2.840.10008.5.1.4.1.1.2.1"
RTSTRUCT_STORAGE = "1.2.840.10008.5.1.4.1.1.481.3"
SR_STORAGE = "1.2.840.10008.5.1.4.1.1.88.11"
ROWS, COLUMNS, SLICES = 8, 10, 6
ROW_MM, COLUMN_MM, STEP_MM = 0.5, 0.7, 2.0  # between rows, between columns, between slices
STORED = (np.arange(SLICES * ROWS * COLUMNS).reshape(SLICES, ROWS, COLUMNS) * 3 - 700).astype(np.int16)  # (slice, row, column), every voxel another
EXPECTED = np.ascontiguousarray(STORED.transpose(2, 1, 0)[::-1, ::-1])  # (x, y, z) in RAS: DICOM's columns run to L, its rows to P
# The first voxel in RAS order is the last column and row of the slice at z = 0.
AFFINE = np.array(
    [[COLUMN_MM, 0, 0, -(COLUMNS - 1) * COLUMN_MM], [0, ROW_MM, 0, -(ROWS - 1) * ROW_MM], [0, 0, STEP_MM, 0], [0, 0, 0, 1]], dtype=float
)
OPTIONS = {"fractional_threshold": 0.5, "overlap": "reject", "between_planes": "reject"}  # of `ingest`, the schema's defaults
Change = Callable[[list[pydicom.Dataset]], Any]


def s6(changes: Sequence[Change] = (), stored: np.ndarray = STORED) -> list[pydicom.Dataset]:
    """Six CT slices of 8 rows and 10 columns, int16, PixelSpacing 0.5\\0.7, z = 0, 2, ..., 10 mm, after each of `changes`.

    stored : (slice, row, column).
    """
    series, study, frame = generate_uid(), generate_uid(), generate_uid()
    datasets = []
    for number, pixels in enumerate(stored):
        data = pydicom.Dataset()
        data.file_meta = FileMetaDataset()
        data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = CT_STORAGE
        data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = generate_uid()
        data.SeriesInstanceUID, data.StudyInstanceUID, data.FrameOfReferenceUID = series, study, frame
        data.Modality, data.Manufacturer, data.ImageType = "CT", "Builder", ["ORIGINAL", "PRIMARY", "AXIAL"]
        data.PatientName, data.PatientID, data.PatientBirthDate, data.PatientSex, data.AccessionNumber = "", "", "", "", ""
        data.StudyDate, data.StudyTime, data.StudyID, data.ReferringPhysicianName = "20200101", "120000", "1", ""
        data.SeriesNumber, data.InstanceNumber, data.AcquisitionNumber, data.AcquisitionTime = 1, number + 1, 1, "120000"
        data.PositionReferenceIndicator = ""
        data.ImagePositionPatient, data.ImageOrientationPatient = [0, 0, number * STEP_MM], [1, 0, 0, 0, 1, 0]
        data.PixelSpacing, data.SliceThickness = [ROW_MM, COLUMN_MM], STEP_MM
        data.SamplesPerPixel, data.PhotometricInterpretation = 1, "MONOCHROME2"
        data.Rows, data.Columns = pixels.shape
        data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = 16, 16, 15, 1
        data.RescaleSlope, data.RescaleIntercept = 1, 0
        data.PixelData = pixels.astype("<i2").tobytes()
        datasets.append(data)
    for change in changes:
        change(datasets)
    return datasets


def set_all(**values: Any) -> Change:
    """A change that gives every slice the same attributes; None deletes one."""

    def change(datasets: list[pydicom.Dataset]) -> None:
        for number in range(len(datasets)):
            set_one(number, **values)(datasets)

    return change


def set_one(number: int, **values: Any) -> Change:
    """A change of one slice's attributes; None deletes one."""

    def change(datasets: list[pydicom.Dataset]) -> None:
        for keyword, value in values.items():
            if value is None:
                delattr(datasets[number], keyword)
            else:
                setattr(datasets[number], keyword, value)

    return change


def set_each(keyword: str, values: Sequence[Any]) -> Change:
    """A change that gives each slice its own value of one attribute."""

    def change(datasets: list[pydicom.Dataset]) -> None:
        for data, value in zip(datasets, values, strict=True):
            setattr(data, keyword, value)

    return change


def place(positions: Sequence[Sequence[float]]) -> Change:
    return set_each("ImagePositionPatient", [list(position) for position in positions])


def compress(syntax: str) -> Change:
    def change(datasets: list[pydicom.Dataset]) -> None:
        for data in datasets:
            data.compress(syntax, generate_instance_uid=False)

    return change


def write(folder: Path, datasets: Sequence[pydicom.Dataset], names: Sequence[str] | None = None) -> Path:
    """Write data sets as Part 10 files into a folder, named by `names` or by number."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(datasets):
        data.save_as(folder / (names[number] if names else f"{number}.dcm"), enforce_file_format=True)
    return folder


def item(**values: Any) -> DicomSequence:
    """A sequence of one item with these attributes."""
    part = pydicom.Dataset()
    for keyword, value in values.items():
        setattr(part, keyword, value)
    return DicomSequence([part])


def enhanced(stored: np.ndarray = STORED, **shared: Any) -> pydicom.Dataset:
    """The slices of S6 as the frames of one Enhanced CT object; edit `PerFrameFunctionalGroupsSequence` for variants.

    stored : (frame, row, column).
    """
    data = s6(stored=stored)[0]
    data.SOPClassUID = data.file_meta.MediaStorageSOPClassUID = ENHANCED_CT_STORAGE
    data.NumberOfFrames = len(stored)
    data.ContentDate, data.ContentTime, data.AcquisitionDateTime = "20200101", "120000", "20200101120000"
    for keyword in ("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "SliceThickness", "RescaleSlope", "RescaleIntercept"):
        delattr(data, keyword)

    common = pydicom.Dataset()
    common.PlaneOrientationSequence = item(ImageOrientationPatient=[1, 0, 0, 0, 1, 0])
    common.PixelMeasuresSequence = item(PixelSpacing=[ROW_MM, COLUMN_MM], SliceThickness=STEP_MM, SpacingBetweenSlices=STEP_MM)
    data.SharedFunctionalGroupsSequence = DicomSequence([common])
    frames = []
    for number in range(len(stored)):
        frame = pydicom.Dataset()
        frame.PlanePositionSequence = item(ImagePositionPatient=[0, 0, number * STEP_MM])
        frame.PixelValueTransformationSequence = item(RescaleSlope=1, RescaleIntercept=0, RescaleType="HU")
        frame.FrameContentSequence = item(DimensionIndexValues=[1, number + 1], InStackPositionNumber=number + 1, StackID="1")
        frames.append(frame)
    data.PerFrameFunctionalGroupsSequence = DicomSequence(frames)
    data.PixelData = stored.astype("<i2").tobytes()
    for keyword, value in shared.items():
        setattr(data, keyword, value)
    return data


def segmentation(
    sources: Sequence[pydicom.Dataset], mask: np.ndarray, names: Sequence[str], kind: str = "BINARY", omit_empty_frames: bool = True
) -> pydicom.Dataset:
    """A DICOM SEG over single-frame slices. mask : (slice, row, column) of segment numbers, or (slice, row, column, segment)."""
    descriptions = [
        hd.seg.SegmentDescription(
            number,
            name,
            codes.SCT.MorphologicallyAbnormalStructure,
            codes.SCT.Neoplasm,
            hd.seg.SegmentAlgorithmTypeValues.MANUAL,
        )
        for number, name in enumerate(names, start=1)
    ]
    data = hd.seg.Segmentation(
        copy.deepcopy(list(sources)),  # highdicom shares their elements
        mask,
        kind,
        descriptions,
        generate_uid(),
        1,
        generate_uid(),
        1,
        "Builder",
        "Builder",
        "1",
        "1",
        omit_empty_frames=omit_empty_frames,
    )
    return data


def structure_set(
    sources: Sequence[pydicom.Dataset], structures: dict[str, list[Any]], kind: str = "CLOSED_PLANAR", references: Sequence[str | None] = ()
) -> pydicom.Dataset:
    """An RTSTRUCT over single-frame slices. structures : name -> contours, each a sequence of points (x, y, z), LPS, mm.

    kind : ContourGeometricType of all; references : SOPInstanceUID that each contour, counted over all structures, names.
    """
    first = sources[0]
    data = pydicom.Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = RTSTRUCT_STORAGE
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = generate_uid()
    data.Modality, data.StudyInstanceUID, data.SeriesInstanceUID = "RTSTRUCT", first.StudyInstanceUID, generate_uid()
    frame = first.FrameOfReferenceUID
    data.ReferencedFrameOfReferenceSequence = item(FrameOfReferenceUID=frame)
    data.StructureSetROISequence, data.ROIContourSequence = DicomSequence(), DicomSequence()
    named = iter(references)
    for number, (name, contours) in enumerate(structures.items(), start=1):
        data.StructureSetROISequence += item(ROINumber=number, ROIName=name, ReferencedFrameOfReferenceUID=frame)
        sequence = DicomSequence()
        for points in contours:
            text = [f"{float(value):.10g}" for point in points for value in point]
            sequence += item(ContourGeometricType=kind, NumberOfContourPoints=len(points), ContourData=text)
            uid = next(named, None)
            if uid is not None:
                sequence[-1].ContourImageSequence = item(ReferencedSOPClassUID=first.SOPClassUID, ReferencedSOPInstanceUID=uid)
        data.ROIContourSequence += item(ReferencedROINumber=number, ContourSequence=sequence)
    return data


def write_nifti(path: Path, array: np.ndarray, affine: np.ndarray | None = None, change: Callable[[nib.Nifti1Image], Any] | None = None) -> Path:
    """A NIfTI-1 file of an array (x, y, z) in its own type. affine : RAS+, mm, 1 mm voxels when None; change : edits the image first."""
    image = nib.Nifti1Image(array, np.eye(4) if affine is None else affine, dtype=array.dtype)
    image.header.set_xyzt_units("mm")
    if change is not None:
        change(image)
    image.to_filename(path)
    return path


def patch(path: Path, offset: int, data: bytes) -> Path:
    """Overwrite bytes of a file in place."""
    with path.open("rb+") as stream:
        stream.seek(offset)
        stream.write(data)
    return path


def numbered_volume(number: int) -> tuple[np.ndarray, np.ndarray]:
    """A volume (4, 5, 6) of int16, no two numbers alike, and its affine: flipped in x, voxels of 1, 2 and 3 mm, a grid for each ten numbers."""
    array = (np.arange(120).reshape(4, 5, 6) * 7 % 113 + 1000 * number).astype(np.int16)
    return array, np.array([[-1, 0, 0, number // 10], [0, 2, 0, -20], [0, 0, 3, 5], [0, 0, 0, 1]], dtype=float)


def numbered_label(number: int) -> tuple[np.ndarray, np.ndarray]:
    """A label (4, 5, 6) of 0, 1 and 2 on the grid of volume 10 number, no two numbers alike."""
    return ((np.arange(120).reshape(4, 5, 6) + number) % (number + 3) % 3).astype(np.uint8), numbered_volume(10 * number)[1]


def write_volume(path: Path, number: int, label: bool = False) -> Path:
    """`numbered_volume` or `numbered_label` as a file of any ending that is read, with the folders it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    array, affine = numbered_label(number) if label else numbered_volume(number)
    if path.name.endswith((".nii", ".nii.gz")):
        return write_nifti(path, array, affine)
    image = sitk.GetImageFromArray(array.T)
    lps = np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine
    spacing = np.linalg.norm(lps[:3, :3], axis=0)
    image.SetSpacing(spacing.tolist())
    image.SetDirection((lps[:3, :3] / spacing).ravel().tolist())
    image.SetOrigin(lps[:3, 3].tolist())
    sitk.WriteImage(image, path)
    return path


def nnunet_raw(folder: Path, cases: Sequence[str] = ("a_1", "b-2", "c3"), ending: str = ".nii.gz", **changes: Any) -> Path:
    """An nnU-Net raw folder of two channels: case n has channels 10 n and 10 n + 1 and label n. changes : to dataset.json, None deletes."""
    for number, case in enumerate(cases):
        for channel in (0, 1):
            write_volume(folder / "imagesTr" / f"{case}_{channel:04d}{ending}", 10 * number + channel)
        write_volume(folder / "labelsTr" / f"{case}{ending}", number, label=True)
    description = {
        "channel_names": {"0": "T1", "1": "FLAIR"},
        "labels": {"background": 0, "core": 1, "rim": 2},
        "numTraining": len(cases),
        "file_ending": ending,
        **changes,
    }
    (folder / "dataset.json").write_text(json.dumps({key: value for key, value in description.items() if value is not None}))
    return folder


def bids_raw(folder: Path, cases: Sequence[str] = ("sub-01_ses-1", "sub-01_ses-2", "sub-02")) -> Path:
    """A BIDS data set: case n has T1w 10 n, FLAIR 10 n + 1, and in derivatives/manual the mask n with desc-lesion."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dataset_description.json").write_text(json.dumps({"Name": "n", "BIDSVersion": "1.9.0"}))
    for number, case in enumerate(cases):
        anatomy = f"{case.replace('_', '/')}/anat"
        for channel, suffix in enumerate(("T1w", "FLAIR")):
            write_volume(folder / anatomy / f"{case}_{suffix}.nii.gz", 10 * number + channel)
        write_volume(folder / "derivatives" / "manual" / anatomy / f"{case}_desc-lesion_mask.nii.gz", number, label=True)
    return folder
