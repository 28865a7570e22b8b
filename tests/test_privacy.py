"""Identifiers planted wherever a file can hold one, and looked for in every byte that the workflow writes and in all that it prints."""

import base64
import copy
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pydicom
import pytest
import SimpleITK as sitk
import yaml
from pydicom.uid import ExplicitVRLittleEndian, ImplicitVRLittleEndian, generate_uid

import hospital
from builders import enhanced, item, numbered_label, numbered_volume, set_all, set_each, set_one, write, write_nifti
from checkout import copy_repository
from teravox import pseudonyms
from test_ingest import call

SECRET = "ZQXJ"  # begins every planted text
UID_ROOT = "1.2.826.0.1.99887766."  # of every UID
BIRTH, ACCESSION = "19870607", "A7738291Q"
WORDS = (SECRET, BIRTH, ACCESSION, "MRN7", UID_ROOT)
TEXTS = {
    "PatientName": f"{SECRET}DOE^JOHN",
    "PatientBirthDate": BIRTH,
    "AccessionNumber": ACCESSION,
    "InstitutionName": f"{SECRET} Hospital",
    "ReferringPhysicianName": f"{SECRET}^Doctor",
    "OperatorsName": f"{SECRET}^Operator",
    "StudyDescription": f"{SECRET} study",
    "SeriesDescription": f"{SECRET} series",
    "ProtocolName": f"{SECRET} protocol",
    "SequenceName": f"{SECRET}seq",
    "ContrastBolusAgent": f"{SECRET} agent",
    "ConvolutionKernel": f"{SECRET}KERNEL",
    "DeviceSerialNumber": f"{SECRET}-4711",
    "StationName": f"{SECRET}CT1",
    "StudyID": f"{SECRET}1",
    "ImageComments": f"{SECRET} comment",
    "PatientComments": f"{SECRET} comment",
    "RescaleType": f"{SECRET}U",
    "Manufacturer": f"{SECRET} Inc",
    "PositionReferenceIndicator": f"{SECRET}",
}


def uid() -> str:
    return generate_uid(prefix=UID_ROOT)


def planted(series: Sequence[pydicom.Dataset], number: int, syntax: str = ExplicitVRLittleEndian) -> list[pydicom.Dataset]:
    """The series with identifiers in standard attributes, in sequences and in private elements, under UIDs that are told apart."""
    study, own, frame = uid(), uid(), uid()
    for data in series:
        data.PatientID = f"MRN7{number:04d}"
        for keyword, value in TEXTS.items():
            setattr(data, keyword, value)
        data.ImageType = [*data.ImageType, f"{SECRET}TYPE"]
        data.StudyInstanceUID, data.SeriesInstanceUID, data.FrameOfReferenceUID = study, own, frame
        data.SOPInstanceUID = data.file_meta.MediaStorageSOPInstanceUID = uid()
        data.RequestAttributesSequence = item(ScheduledProcedureStepDescription=f"{SECRET} nested", RequestedProcedureID=ACCESSION)
        data.RequestAttributesSequence[0].ReferencedStudySequence = item(ReferencedSOPInstanceUID=uid())
        data.private_block(0x0029, "SIEMENS CSA HEADER", create=True).add_new(0x10, "OB", f"{SECRET} private".encode())
        data.private_block(0x0029, "SIEMENS CSA HEADER").add_new(0x20, "LO", f"{SECRET} private")
        data.private_block(0x0019, "SIEMENS MR HEADER", create=True).add_new(0x0C, "LO", f"{SECRET} b")
        data.file_meta.TransferSyntaxUID = syntax
    return list(series)


def directory(series: Sequence[pydicom.Dataset]) -> pydicom.Dataset:
    data = hospital.report(series)
    data.SOPClassUID = data.file_meta.MediaStorageSOPClassUID = "1.2.840.10008.1.3.10"
    data.DirectoryRecordSequence = item(DirectoryRecordType="PATIENT", PatientName=TEXTS["PatientName"], PatientID="MRN70001")
    return data


def segmented(series: Sequence[pydicom.Dataset], name: str = "lesion") -> pydicom.Dataset:
    data = hospital.seg(series, name)
    data.SeriesDescription, data.ContentLabel = f"{SECRET} seg", SECRET
    data.SegmentSequence[0].SegmentDescription = f"{SECRET} segment"
    data.SOPInstanceUID = data.file_meta.MediaStorageSOPInstanceUID = uid()
    return data


def contoured(series: Sequence[pydicom.Dataset], name: str = "lesion") -> pydicom.Dataset:
    data = hospital.contours(series, name)
    data.StructureSetLabel, data.StructureSetName, data.StructureSetDescription = SECRET, f"{SECRET} set", f"{SECRET} set"
    extra = copy.deepcopy(data.StructureSetROISequence[0])
    extra.ROINumber, extra.ROIName, extra.ROIDescription = 9, f"{SECRET} region", f"{SECRET} region"
    data.StructureSetROISequence.append(extra)
    data.SOPInstanceUID = data.file_meta.MediaStorageSOPInstanceUID = uid()
    return data


def hostile(root: Path) -> None:
    """Studies of one patient each, in folders and files with names: good ones, and one for each way of rejection."""

    def study(number: int, *changes: Any, label: Any = segmented, syntax: str = ExplicitVRLittleEndian) -> Path:
        series = planted(hospital.slices(number % 10), number, syntax)
        reference = copy.deepcopy(series)
        for change in changes:
            change(series)
        folder = root / f"{SECRET}DOE_JOHN_{number}" / f"MRN7{number:04d}"
        write(folder / "ct", series, [f"{SECRET}_{index}" for index in range(len(series))])
        write(folder / "label", [label(reference)], [f"{SECRET}label"])
        return folder

    study(1)
    study(2, label=contoured)
    folder = study(3, set_all(BurnedInAnnotation="YES"), syntax=ImplicitVRLittleEndian)
    write(folder, [directory(planted(hospital.slices(3), 3))], ["DICOMDIR"])
    write(folder, [hospital.report(planted(hospital.slices(3), 3))], [f"{SECRET}.sr"])
    (folder / "ct" / f"{SECRET}.pdf").write_bytes(b"%PDF-1.4")
    packed = study(4)
    for path in (packed / "ct").iterdir():
        with path.with_suffix(".gz").open("wb") as stream, gzip.GzipFile(f"{SECRET}.dcm", "wb", fileobj=stream) as target:
            target.write(path.read_bytes())
        path.unlink()
    study(5, lambda series: series.pop(2))
    study(6, set_one(2, ConvolutionKernel=f"{SECRET}OTHER"))
    cut = study(7) / "ct" / f"{SECRET}_1"
    cut.write_bytes(cut.read_bytes()[:-50])
    (study(8) / "ct" / f"{SECRET}_x").write_bytes(f"{SECRET} no DICOM\0".encode())
    twin = study(9)
    data = [pydicom.dcmread(path) for path in sorted((twin / "ct").iterdir())]
    set_all(SeriesInstanceUID=uid(), SeriesDescription=f"{SECRET} twin")(data)
    set_each("SOPInstanceUID", [uid() for _ in data])(data)
    write(twin / "twin", data)
    study(10, set_one(3, PatientID="MRN79999"))
    study(11, label=lambda series: segmented(series, f"{SECRET} tumour"))
    study(12, label=lambda series: contoured(series, f"{SECRET} tumour"))
    study(13, set_all(PhotometricInterpretation=f"{SECRET}"))
    study(14, set_all(RescaleSlope="0", DeviceSerialNumber=SECRET))
    study(15, set_all(SOPClassUID=f"{UID_ROOT}5"))
    study(16, set_one(1, FrameOfReferenceUID=uid()))
    study(17, set_one(0, SOPInstanceUID=None))
    bad = study(18) / "ct" / f"{SECRET}_2"
    bad.write_bytes(bad.read_bytes().replace(b"0.5\\0.7", b"ZQXJ\\.7"))
    study(19, set_all(Modality=f"{SECRET}"))
    meta = study(20) / "ct" / f"{SECRET}_2"
    meta.write_bytes(meta.read_bytes().replace(b"DS", b"ZQ", 3).replace(b"US", b"XJ", 2))
    frames = enhanced()
    planted([frames], 21)
    for frame in frames.PerFrameFunctionalGroupsSequence:
        frame.FrameContentSequence[0].StackID = frame.FrameContentSequence[0].FrameComments = SECRET
        frame.PixelValueTransformationSequence[0].RescaleType = SECRET
    write(root / f"{SECRET}enhanced", [frames])
    broken = copy.deepcopy(frames)
    del broken.PerFrameFunctionalGroupsSequence[2]
    planted([broken], 22)
    write(root / f"{SECRET}broken", [broken])
    lost = pydicom.dcmread(root / f"{SECRET}DOE_JOHN_2" / "MRN70002" / "label" / f"{SECRET}label")
    lost.ROIContourSequence[0].ContourSequence[0].ContourImageSequence[0].ReferencedSOPInstanceUID = uid()
    write(root / f"{SECRET}DOE_JOHN_2" / "MRN70002" / "label", [lost], [f"{SECRET}label"])


def volumes(folder: Path) -> list[tuple[str, Path, Path]]:
    """(case, image, label) of files of other kinds, good ones and damaged ones. Paths outside folders are the user's own words."""
    folder.mkdir()
    array, affine = numbered_volume(0)
    label = write_nifti(folder / "label.nii.gz", *numbered_label(0))

    def speak(image: nib.Nifti1Image) -> None:
        image.header["descrip"], image.header["aux_file"] = f"{SECRET} description", f"{SECRET}.nii"
        image.header["db_name"], image.header["intent_name"] = f"{SECRET} db", f"{SECRET} intent"
        image.header.extensions.append(nib.nifti1.Nifti1Extension("comment", f"{SECRET} extension".encode()))

    rows: list[tuple[str, Path, Path]] = []

    def add(path: Path) -> Path:
        rows.append((f"v{len(rows)}", path, label))
        return path

    plain = write_nifti(add(folder / "plain.nii"), array, affine, speak)
    with add(folder / "packed.nii.gz").open("wb") as stream, gzip.GzipFile(f"{SECRET}.nii", "wb", fileobj=stream) as target:
        target.write(plain.read_bytes())
    add(folder / "cut.nii.gz").write_bytes((folder / "packed.nii.gz").read_bytes()[:-40])
    add(folder / "cut.nii").write_bytes(plain.read_bytes()[:-40])
    add(folder / "extension.nii").write_bytes(plain.read_bytes()[:352] + f"{SECRET}".encode() * 9)
    add(folder / "magic.nii").write_bytes(plain.read_bytes().replace(b"n+1\0", SECRET.encode()))

    def askew(image: nib.Nifti1Image) -> None:
        speak(image)
        image.set_qform(np.diag([3.0, 2, 1, 1]), code=1)

    write_nifti(add(folder / "askew.nii"), array, affine, askew)
    write_nifti(add(folder / "nan.nii"), np.where(array == array.max(), np.nan, array).astype(np.float32), affine, speak)
    image = sitk.ReadImage(str(plain))
    for key in image.GetMetaDataKeys():
        image.EraseMetaData(key)
    image.SetMetaData("PatientName", f"{SECRET}DOE")
    for ending in ("nrrd", "mha", "nhdr", "mhd"):
        sitk.WriteImage(image, add(folder / f"good.{ending}"))
    nrrd, mha = (folder / "good.nrrd").read_bytes(), (folder / "good.mha").read_bytes()
    spoken = nrrd.replace(b"NRRD0004\n", f"NRRD0004\n# {SECRET} comment\n{SECRET}:=JOHN\n".encode())
    add(folder / "spoken.nrrd").write_bytes(spoken)
    add(folder / "spoken.mha").write_bytes(mha.replace(b"NDims = 3\n", f"NDims = 3\nComment = {SECRET} comment\n".encode()))
    add(folder / "cut.nrrd").write_bytes(spoken[:-30])
    add(folder / "cut.mha").write_bytes(mha[:-30])
    add(folder / "kind.nrrd").write_bytes(spoken.replace(b"type: short", f"type: {SECRET}".encode()))
    add(folder / "key.nrrd").write_bytes(spoken.replace(b"type: short", f"{SECRET} JOHN".encode()))
    add(folder / "encoding.nrrd").write_bytes(spoken.replace(b"encoding: ", f"encoding: {SECRET}".encode()))
    add(folder / "kind.mha").write_bytes(mha.replace(b"MET_SHORT", f"MET_{SECRET}".encode()))
    add(folder / "size.mha").write_bytes(mha.replace(b"DimSize = 4", f"DimSize = {SECRET}".encode()))
    header = (folder / "good.mhd").read_text()
    add(folder / "away.mhd").write_text(header.replace("good.raw", f"{SECRET}_JOHN.raw").replace("good.zraw", f"{SECRET}_JOHN.raw"))
    add(folder / "text.nii.gz").write_text(f"{SECRET} nothing")
    series = planted(hospital.slices(1), 31)
    write(folder / "series", series, [f"{SECRET}_{number}" for number in range(6)])
    (folder / "series" / f"{SECRET}.bin").write_bytes(b"\0\1\2" * 99)
    add(folder / "series")
    rows.append(("bylabel", plain, write(folder / "seg", [segmented(series, f"{SECRET} tumour")], [f"{SECRET}.dcm"])))
    values = write_nifti(folder / "values.nii", (numbered_label(0)[0] * 9).astype(np.uint8), affine, speak)
    rows.append(("values", plain, values))
    return rows


def spellings(word: str) -> Iterator[bytes]:
    """A word as UTF-8 and Latin-1, as UTF-16, in hexadecimal digits, and as the part of a base64 text that does not depend on its neighbours."""
    raw = word.encode()
    yield from (raw, word.encode("utf-16-le"), word.encode("utf-16-be"), raw.hex().encode(), raw.hex().upper().encode())
    for before in range(3):
        yield base64.b64encode(b"\0" * before + raw)[-(-before * 8 // 6) : (before + len(raw)) * 8 // 6]


def betrayed(content: bytes, words: Sequence[str] = WORDS) -> list[str]:
    folded = content.lower()
    return [
        word for word in words for text in spellings(word) if text in content or (text.isalnum() and text == word.encode() and text.lower() in folded)
    ]


def check_folder(folder: Path, words: Sequence[str] = WORDS) -> int:
    """The number of files below a folder that were looked through, with their names."""
    count = 0
    for path in folder.rglob("*"):
        assert not betrayed(os.fsencode(path.name), words), path
        if path.is_file():
            content = path.read_bytes()
            contents = [content, gzip.decompress(content)] if content[:2] == b"\x1f\x8b" else [content]
            for part in contents:
                assert not betrayed(part, words), (path, betrayed(part, words))
            count += 1
    return count


def test_the_search_finds_what_it_looks_for() -> None:
    for word in WORDS:
        for before in (b"", b"a", b"ab"):
            raw = before + word.encode() + b"z"
            for text in (raw, base64.b64encode(raw), raw.hex().encode(), raw.decode().encode("utf-16"), raw.lower()):
                assert word in betrayed(b"xx" + text + b"yy"), (word, text)
    assert not betrayed(b"nothing of that kind")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("privacy")
    copy_repository(root)
    return root


def workflow(root: Path, settings: dict[str, Any]) -> str:
    (root / "my.yaml").write_text(yaml.safe_dump(settings))
    shards = [f"{settings['results']}/shards/{number:05d}-of-00002.index.json" for number in range(2)]
    line = [sys.executable, "-m", "snakemake", "--configfile", "my.yaml", "--cores", "2", "--", "ingest_report", *shards]
    done = subprocess.run(line, cwd=root, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout + done.stderr


def verdicts(folder: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"ok": [], "corrected": [], "rejected": []}
    for path in sorted(folder.glob("ingest/*/case.json")):
        document = json.loads(path.read_text())
        found[document["verdict"]].append(document["reason"] or "")
    return found


def test_a_tree_of_dicom_files_leaves_nothing(checkout: Path) -> None:
    """Survey, ingestion, report, split, resampling and shards; the survey's tables without descriptions too."""
    tree = checkout / "data" / "tree"
    hostile(tree)
    line = [sys.executable, "scripts/ingest.py", "survey", "data/tree"]
    done = subprocess.run(line, cwd=checkout, capture_output=True, timeout=120, check=True)
    assert not betrayed(done.stdout + done.stderr)
    last = checkout / "private" / "survey" / "last"
    for name in ("series.tsv", "labels.tsv", "cases.tsv"):
        assert not betrayed((last / name).read_bytes()), name
    assert betrayed((last / "files.tsv").read_bytes())  # that table names the files, and docs/privacy.md says so

    changes = {"on_rejected": "exclude", "results": "results_tree", "shard": {"count": 2}}
    printed = workflow(checkout, hospital.settings("data/tree", **changes))
    found = verdicts(checkout / "results_tree")
    assert len(found["ok"]) >= 4 and len(found["rejected"]) >= 14, found
    assert not betrayed(printed.encode())
    assert check_folder(checkout / "results_tree") > 80
    assert "BurnedInAnnotation is YES" in (checkout / "results_tree" / "ingest" / "verdicts.tsv").read_text()


def test_volume_files_leave_nothing(checkout: Path) -> None:
    rows = volumes(checkout / "data" / "volumes")
    array, affine = numbered_volume(0)
    rows.append(("other", write_nifti(checkout / "data" / "volumes" / "other.nii", array + np.int16(1000), affine), rows[0][2]))  # of another patient
    lines = ["case\tpatient\tct\tlabel"]
    lines += [f"{case}\tMRN7{'2' if case == 'other' else '1'}\t{image}\t{label}" for case, image, label in rows]
    (checkout / "data" / "cases.tsv").write_text("\n".join(lines).replace(f"{checkout}/", "") + "\n")
    settings = hospital.settings("", on_rejected="exclude", results="results_table", shard={"count": 2}, resample={"spacing": 1})
    settings |= {"dataset": {"layout": "table", "path": "data/cases.tsv"}, "labels": [{"name": "a", "value": 1}, {"name": "b", "value": 2}]}
    settings |= {"channels": [{"name": "ct"}]}
    printed = workflow(checkout, settings)
    found = verdicts(checkout / "results_table")
    assert len(found["ok"] + found["corrected"]) >= 8 and len(found["rejected"]) >= 12, found
    assert not betrayed(printed.encode())
    assert check_folder(checkout / "results_table") > 80


@pytest.mark.parametrize("keep", [False, True])
def test_uids_are_written_only_when_asked_for(tmp_path: Path, keep: bool) -> None:
    series = planted(hospital.slices(1), 1)
    image, label = write(tmp_path / "ct", series), write(tmp_path / "seg", [segmented(series)])
    pseudonyms.write_key(tmp_path / "key", bytes(range(32)))
    settings = {"channels": [{"name": "ct"}], "labels": [{"name": "lesion", "value": 1}], "ingest": {"keep_uids": keep}}
    arguments = ["--case=c", "--patient=P1", f"--settings={json.dumps(settings)}", f"--image=ct={image}", f"--label={label}"]
    done = call("ingest", *arguments, f"--key={tmp_path / 'key'}", f"--out={tmp_path / 'out'}")
    assert done.returncode == 0
    check_folder(tmp_path / "out", [word for word in WORDS if word != UID_ROOT])
    found = json.loads((tmp_path / "out" / "case.json").read_text())["channels"]["ct"]["slices"]["instances"]
    uids = [data.SOPInstanceUID for data in series]
    assert found == [[uid if keep else pseudonyms.uid_hash(uid, bytes(range(32))), 1] for uid in uids]
    if not keep:
        check_folder(tmp_path / "out")
        assert not betrayed(done.stdout + done.stderr)
