"""Files of a DICOM source: compressed, damaged, hostile, oddly named; each used, or left out or refused for its true reason."""

import gzip
import os
import resource
import shutil
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from pydicom.fileset import FileSet
from pydicom.uid import DeflatedExplicitVRLittleEndian, ImplicitVRLittleEndian, JPEG2000Lossless, generate_uid

from builders import EXPECTED, STORED, Change, compress, enhanced, s6, set_all, set_each, set_one, write
from dicom_reading import OPTIONS, accepted, read, rejected, series
from teravox import contained, ingest
from teravox.dicom import sources
from teravox.dicom.headers import read_header
from teravox.errors import RejectedCase

LARGE = np.kron(STORED, np.ones((1, 8, 8), np.int16))


def written(syntax: str) -> Change:
    def change(datasets: list[pydicom.Dataset]) -> None:
        for data in datasets:
            data.file_meta.TransferSyntaxUID = syntax

    return change


deflated = written(DeflatedExplicitVRLittleEndian)


def pack(path: Path, content: bytes | None = None) -> Path:
    """A file as gzip, beside which the plain one is gone."""
    content = path.read_bytes() if content is None else content
    path.unlink(missing_ok=True)
    packed = path.with_name(path.name + ".gz")
    packed.write_bytes(gzip.compress(content, mtime=0))
    return packed


# gzip and deflation


@pytest.mark.parametrize("change", [lambda datasets: None, deflated])
def test_gzip_files(tmp_path: Path, change: Change) -> None:
    folder = series(tmp_path / "all", change)
    for path in sorted(folder.iterdir()):
        pack(path)
    accepted(folder)
    one = series(tmp_path / "one", change)
    pack(one / "3.dcm").rename(one / "3.dcm")
    assert [account.status for account in accepted(one).accounts] == ["used"] * 6


def test_gzip_multiframe(tmp_path: Path) -> None:
    pack(write(tmp_path, [enhanced()]) / "0.dcm")
    accepted(tmp_path)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.3, 0.6, 0.9, 0.999])
def test_truncated_gzip(tmp_path: Path, share: float) -> None:
    folder = series(tmp_path)
    packed = pack(folder / "3.dcm")
    packed.write_bytes(packed.read_bytes()[: int(packed.stat().st_size * share)])
    rejected(folder, "3.dcm.gz", "damaged gzip file" if share > 0.02 else "")


@pytest.mark.parametrize("place", [-8, -5, -4, -1])
def test_gzip_whose_checksum_or_size_is_wrong(tmp_path: Path, place: int) -> None:
    folder = series(tmp_path)
    packed = pack(folder / "3.dcm")
    content = bytearray(packed.read_bytes())
    content[place] ^= 1
    packed.write_bytes(content)
    rejected(folder, "3.dcm.gz", "damaged gzip file (BadGzipFile)")


def test_gzip_around_a_truncated_image_names_the_source(tmp_path: Path) -> None:
    """Not the copy in the scratch folder."""
    folder = series(tmp_path)
    pack(folder / "3.dcm", (folder / "3.dcm").read_bytes()[:-60])
    assert "teravox-" not in rejected(folder, "3.dcm.gz", "truncated")


def large(data: pydicom.Dataset, size: int) -> pydicom.Dataset:
    data.PixelData = data.PixelData + bytes(size)
    return data


def bounded(folder: Path, *words: str, seconds: float = 60) -> str:
    """Refused in bounded time, with memory far below what the file would grow to."""
    begin, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    with pytest.raises(RejectedCase) as caught:
        contained.call(ingest.read_source, folder, {"prefer": "only"}, OPTIONS, about=str(folder), megabytes=1)
    assert time.monotonic() - begin < seconds
    assert max(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, before) < 3e6  # kB
    message = str(caught.value)
    assert message.startswith(str(folder)) and len(message.splitlines()) == 1
    for word in words:
        assert word in message
    return message


def zeros(path: Path, start: bytes, gigabytes: float) -> None:
    """A gzip file of some bytes and then zeros, a thousandth as large."""
    with path.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=9) as stream:
        stream.write(start)
        for _ in range(int(gigabytes * 1000)):
            stream.write(bytes(1_000_000))


def test_gzip_bombs(tmp_path: Path) -> None:
    """Zeros behind the pixels, in an element before them, and no DICOM at all."""
    folder = series(tmp_path / "behind")
    zeros(folder / "3.dcm", (folder / "3.dcm").read_bytes(), 0.4)
    bounded(folder, "3.dcm", "its header says less")
    folder = series(tmp_path / "before")
    start = (folder / "3.dcm").read_bytes()
    at = start.index(b"\x28\x00\x10\x00US")  # Rows
    zeros(folder / "3.dcm", start[:at] + b"\x27\x00\x01\x10OB\0\0" + struct.pack("<I", 399_000_000), 0.4)
    bounded(folder, "3.dcm", "header of more than")
    folder = series(tmp_path / "nothing")
    zeros(folder / "3.dcm", b"", 0.4)
    bounded(folder, "3.dcm")


def test_deflated_bomb(tmp_path: Path) -> None:
    folder = series(tmp_path, deflated)
    path = folder / "3.dcm"
    content = path.read_bytes()
    begin = 144 + struct.unpack_from("<I", content, 140)[0]
    packer = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    body = [packer.compress(zlib.decompress(content[begin:], -zlib.MAX_WBITS))]
    body += [packer.compress(bytes(1_000_000)) for _ in range(400)]
    path.write_bytes(content[:begin] + b"".join(body) + packer.flush())
    bounded(folder, "3.dcm", "deflated data set of more than")


@pytest.mark.parametrize("kept", [0.5, 0.9, 0.99])
def test_truncated_deflation(tmp_path: Path, kept: float) -> None:
    folder = series(tmp_path, deflated)
    content = (folder / "3.dcm").read_bytes()
    (folder / "3.dcm").write_bytes(content[: int(len(content) * kept)])
    rejected(folder, "3.dcm")


# Damage


@pytest.mark.parametrize("kind", ["explicit", "implicit", "jpeg 2000", "enhanced"])
def test_truncated_anywhere(tmp_path: Path, kind: str) -> None:  # A12
    """Every 97th byte: the last slice, which leaves no gap behind."""
    changes: dict[str, list[Change]] = {"implicit": [written(ImplicitVRLittleEndian)], "jpeg 2000": [compress(JPEG2000Lossless)]}
    folder = write(tmp_path, [enhanced()] if kind == "enhanced" else s6(changes.get(kind, []), LARGE if kind == "jpeg 2000" else STORED))
    path = sorted(folder.iterdir())[-1]
    content = path.read_bytes()
    for kept in range(0, len(content), 97):
        path.write_bytes(content[:kept])
        rejected(folder, path.name)
    path.write_bytes(content)
    assert read(folder).array.size


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"NumberOfFrames": 2**31 - 1}, "3.dcm"),
        ({"NumberOfFrames": 2}, "truncated"),
        ({"NumberOfFrames": 0}, ""),
        ({"NumberOfFrames": -1}, "expected at least 1 of each"),
        ({"Rows": 0}, "0 rows"),
        ({"Columns": 0}, "0 columns"),
        ({"Rows": 65535, "Columns": 65535}, "truncated"),
        ({"BitsAllocated": 12}, "bits stored in 12"),
        ({"BitsAllocated": 64}, "bits stored in 64"),
        ({"BitsAllocated": 1, "BitsStored": 1, "HighBit": 0}, "bits stored in 1"),
        ({"BitsStored": 0}, "0 bits stored"),
        ({"BitsStored": 17, "HighBit": 16}, "17 bits stored in 16"),
        ({"BitsStored": None}, "0 bits stored"),
        ({"PixelRepresentation": None}, "PixelRepresentation is missing"),
        ({"PixelRepresentation": 7}, "PixelRepresentation"),
        ({"SamplesPerPixel": 2}, "1 or 3 samples"),
        ({"SamplesPerPixel": 4, "PhotometricInterpretation": "CMYK"}, "CMYK"),
        ({"PhotometricInterpretation": None}, "photometric interpretation missing"),
    ],
)
def test_sizes_that_cannot_be(tmp_path: Path, values: dict[str, Any], words: str) -> None:
    folder = series(tmp_path, set_one(3, **values))
    if values == {"NumberOfFrames": 0}:
        accepted(folder)  # a file without frames but with the pixels of one has one
    else:
        bounded(folder, words)


NUMBERS: dict[str, list[Any]] = {
    "ImagePositionPatient": [[0, 0, 1e300], [0, 0, -1e300], [1e30, 0, 6], [0, 0, 1e-300], [0, 0, 6, 6], [0, 0]],
    "ImageOrientationPatient": [[1e200, 0, 0, 0, 1e200, 0], [0] * 6, [1, 0, 0, 0, 1], [1, 0, 0, 1, 0, 0], [1e-200] * 6],
    "PixelSpacing": [[1e-300, 1e-300], [1e300, 1e300], [1e-9, 1e-9], [0.5, 0], [0.5, 0.7, 1]],
    "RescaleSlope": [1e300, -1e300, 1e-300, 0],
    "RescaleIntercept": [1e300, -1e300, 2**31, 2**62, 1e-300],
    "SliceThickness": [0, -1, 1e300],
    "EchoTime": [1e300, -5],
    "PixelPaddingValue": [65535, 32768],
    "TriggerTime": [1e300],
    "DiffusionBValue": [1e300, -1.0],
    "InstanceNumber": [-1, 2**31 - 1],
}


@pytest.mark.parametrize("keyword", NUMBERS)
@pytest.mark.parametrize("every", [True, False])
@pytest.mark.filterwarnings("ignore")
def test_numbers_beyond_reason(tmp_path: Path, keyword: str, every: bool) -> None:
    """A volume of finite numbers, or one line."""
    for number, value in enumerate(NUMBERS[keyword]):
        values = {keyword: value} if keyword != "PixelPaddingValue" else {"PixelPaddingValue": value, "PixelRepresentation": 0}
        folder = series(tmp_path / str(number), set_all(**values) if every else set_one(3, **values))
        for tilt in ("reject", "shear"):
            try:
                volume = read(folder, {"tilt": tilt})
                assert np.isfinite(volume.affine).all()
            except RejectedCase as error:
                assert str(error).startswith(str(folder)) and len(str(error).splitlines()) == 1


@pytest.mark.parametrize("syntax", ["1.2.3.4", "1.2.840.10008.1.2.99", "1.2.840.113619.5.2", "DOE^JOHN", ""])
def test_unknown_transfer_syntax(tmp_path: Path, syntax: str) -> None:
    folder = series(tmp_path)
    content = (folder / "3.dcm").read_bytes()
    assert content.count(b"UI\x14\0" + b"1.2.840.10008.1.2.1\0") == 1
    (folder / "3.dcm").write_bytes(content.replace(b"1.2.840.10008.1.2.1\0", syntax.encode().ljust(20, b"\0")))
    message = rejected(folder, "3.dcm", "" if syntax == "DOE^JOHN" else "transfer syntax is missing or unknown")
    assert "DOE" not in message


def test_file_that_says_explicit_and_is_implicit(tmp_path: Path) -> None:
    """Right or refused, and never something else."""
    folder = series(tmp_path)
    for path in folder.iterdir():
        data = pydicom.dcmread(path)
        with path.open("wb") as stream:
            stream.write(b"\0" * 128 + b"DICM")
            pydicom.filewriter.write_file_meta_info(stream, data.file_meta)
            buffer = pydicom.filebase.DicomBytesIO()
            buffer.is_implicit_VR, buffer.is_little_endian = True, True
            pydicom.filewriter.write_dataset(buffer, pydicom.Dataset(data))
            stream.write(buffer.getvalue())
    try:
        accepted(folder)
    except RejectedCase as error:
        assert str(error).startswith(str(folder))


def nested(depth: int, undefined: bool) -> bytes:
    """A sequence in a sequence, so many deep, explicit little endian."""
    head, length = b"\x40\x00\x75\x02SQ\0\0", b"\xff\xff\xff\xff"
    if undefined:
        return (head + length + b"\xfe\xff\x00\xe0" + length) * depth + (b"\xfe\xff\x0d\xe0" + bytes(4) + b"\xfe\xff\xdd\xe0" + bytes(4)) * depth
    content = b""
    for _ in range(depth):
        content = head + struct.pack("<I", len(content) + 8) + b"\xfe\xff\x00\xe0" + struct.pack("<I", len(content)) + content
    return content


def inserted(folder: Path, content: bytes, tag: bytes = b"\xe0\x7f\x10\x00") -> Path:
    path = folder / "3.dcm"
    whole = path.read_bytes()
    at = whole.rindex(tag)
    path.write_bytes(whole[:at] + content + whole[at:])
    return folder


@pytest.mark.parametrize("depth", [3, 100, 20000])
@pytest.mark.parametrize("undefined", [True, False])
def test_deeply_nested_sequences(tmp_path: Path, depth: int, undefined: bool) -> None:
    folder = inserted(series(tmp_path), nested(depth if undefined else min(depth, 2000), undefined))
    begin = time.monotonic()
    try:
        accepted(folder)
    except RejectedCase as error:
        assert depth > 3 and str(error).startswith(str(folder / "3.dcm"))
    assert time.monotonic() - begin < 30


def test_a_sequence_of_very_many_items(tmp_path: Path) -> None:
    """300,000 empty ones."""
    items = b"\x40\x00\x75\x02SQ\0\0\xff\xff\xff\xff" + b"\xfe\xff\x00\xe0\0\0\0\0" * 300_000 + b"\xfe\xff\xdd\xe0\0\0\0\0"
    folder = inserted(series(tmp_path), items)
    begin = time.monotonic()
    accepted(folder)
    assert time.monotonic() - begin < 60


def test_group_lengths_and_odd_elements(tmp_path: Path) -> None:
    folder = series(tmp_path)
    inserted(folder, b"\xe0\x7f\x00\x00UL\x04\x00" + struct.pack("<I", 172))
    accepted(folder)


# Names and places


@pytest.mark.parametrize("name", ["a\nb.dcm", "\t.dcm", "x" * 251 + ".dcm", "3", "IMG 0003", "3.dcm;1", "ä.dcm", "$(id).dcm", "3.dcm.bak"])
def test_names(tmp_path: Path, name: str) -> None:
    folder = series(tmp_path)
    (folder / "3.dcm").rename(folder / name)
    accepted(folder)


def test_files_without_endings_in_nested_folders_beside_a_dicomdir(tmp_path: Path) -> None:
    """As a DICOM CD holds them."""
    collection = FileSet()
    for data in s6([set_all(PatientID="x", PatientName="x", StudyID="1")]):
        collection.add(data)
    collection.write(tmp_path / "cd")
    assert (tmp_path / "cd" / "DICOMDIR").is_file()
    volume = accepted(tmp_path / "cd")
    assert "left out 1 file(s): object without an image: Media Storage Directory Storage" in volume.notes


def test_files_without_a_preamble_are_refused(tmp_path: Path) -> None:
    folder = series(tmp_path)
    (folder / "3.dcm").write_bytes((folder / "3.dcm").read_bytes()[132:])
    rejected(folder, "3.dcm", "no DICM prefix")


def test_pipes_and_sockets_are_refused(tmp_path: Path) -> None:
    folder = series(tmp_path)
    os.mkfifo(folder / "6.dcm")
    rejected(folder, "6.dcm", "pipe, socket or device")


def test_folder_that_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may hold slices."""
    folder = series(tmp_path)
    (folder / "locked").mkdir()
    real = os.scandir

    def scandir(path: Any) -> Any:
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    rejected(folder, "locked", "not readable (Permission denied)")


def dose(datasets: list[pydicom.Dataset]) -> None:
    """Of one slice an RT Dose of six frames."""
    data = datasets[5]
    data.SOPClassUID = data.file_meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.481.2"
    data.Modality, data.SeriesInstanceUID, data.NumberOfFrames = "RTDOSE", generate_uid(), 6
    data.PixelData = STORED.tobytes()


def spectrum(datasets: list[pydicom.Dataset]) -> None:
    data = datasets[5]
    data.SOPClassUID = data.file_meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.4.2"
    del data.PixelData


@pytest.mark.parametrize(("change", "name"), [(dose, "RT Dose Storage"), (spectrum, "MR Spectroscopy Storage")])
def test_objects_that_are_no_slices(tmp_path: Path, change: Change, name: str) -> None:  # A25
    volume = accepted(series(tmp_path, change), EXPECTED[:, :, :5])
    assert any(line.endswith(f"object without an image: {name}") for line in (*volume.notes, *volume.corrections))


def test_every_file_has_an_account(tmp_path: Path) -> None:
    folder = series(tmp_path)
    shutil.copyfile(folder / "2.dcm", folder / "copy.dcm")
    (folder / "note.txt").write_text("x")
    write(folder / "other", s6()[:4])
    write(folder / "scout", s6([set_all(ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"])])[:1])
    volume = read(folder, prefer="most_slices")
    found = {str(account.path.relative_to(folder)): (account.status, account.reason) for account in volume.accounts}
    assert found == {
        **{f"{number}.dcm": ("used", "") for number in range(6)},
        "copy.dcm": ("skipped", "identical copy of another file"),
        "note.txt": ("skipped", "text, no DICOM"),
        **{f"other/{number}.dcm": ("skipped", "of another volume") for number in range(4)},
        "scout/0.dcm": ("skipped", "localizer"),
    }


# What messages may hold

PLANTED = {
    **dict.fromkeys(("PatientName", "PatientID", "InstitutionName", "SeriesDescription", "ProtocolName", "StudyID"), "DOE^JOHN"),
    **dict.fromkeys(("ConvolutionKernel", "ContrastBolusAgent", "SequenceName", "StackID", "AccessionNumber"), "DOE^JOHN"),
    **dict.fromkeys(("ScanningSequence", "SequenceVariant", "ComplexImageComponent"), "DOE"),
    "PatientBirthDate": "19500102",
    "ImageType": ["ORIGINAL", "PRIMARY", "DOE^JOHN"],
    "RescaleType": "DOE^JOHN",
    "Units": "DOE",
}
MESSAGES: dict[str, Callable[[], list[Change]]] = {
    "gap": lambda: [set_each("ImagePositionPatient", [[0, 0, height] for height in (0, 2, 4, 8, 10, 12)])],
    "twice": lambda: [set_each("ImagePositionPatient", [[0, 0, height] for height in (0, 2, 4, 4, 6, 8)])],
    "tilt": lambda: [set_each("ImagePositionPatient", [[0, n, 2 * n] for n in range(6)])],
    "modality": lambda: [set_one(3, Modality="JOHN")],
    "modalities": lambda: [set_all(Modality="JOHN", PhotometricInterpretation="MONOCHROME1", RescaleSlope=0)],
    "photometric": lambda: [set_all(PhotometricInterpretation="DOE")],
    "photometric of one": lambda: [set_one(3, PhotometricInterpretation="JOHN19500102")],
    "kernel": lambda: [set_one(3, ConvolutionKernel="19500102")],
    "agent": lambda: [set_one(3, ContrastBolusAgent="19500102", PatientID="DOE"), set_one(2, KVP=1)],
    "units": lambda: [set_one(3, Units="JOHN")],
    "image type": lambda: [set_one(3, ImageType=["JOHN", "DOE", "M"]), set_one(2, ImageType=["JOHN", "DOE", "P"])],
    "component": lambda: [set_one(3, ComplexImageComponent="JOHN")],
    "private": lambda: [set_one(3, SOPClassUID="1.2.3.19500102"), set_one(3, PixelData=None)],
    "class": lambda: [set_one(3, SOPClassUID="DOE^JOHN")],
    "rows": lambda: [set_one(3, Rows=7, PixelData=bytes(140))],
    "echoes": lambda: [set_each("EchoTime", [1, 2, 3, 4, 5, 6])],
    "frame of reference": lambda: [set_one(3, FrameOfReferenceUID="1.2.19500102")],
    "localizer": lambda: [set_all(ImageType=["DOE^JOHN", "PRIMARY", "LOCALIZER"])],
    "slope": lambda: [set_one(3, RescaleSlope=0)],
    "spacing": lambda: [set_all(PixelSpacing=None)],
}


@pytest.mark.parametrize("kind", MESSAGES)
def test_messages_hold_no_text_of_attributes(
    tmp_path: Path, kind: str, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:  # A24
    folder = series(tmp_path, set_all(**PLANTED), *MESSAGES[kind]())
    shown = len(recwarn)
    message = rejected(folder).removeprefix(str(tmp_path))
    for planted in ("DOE", "JOHN", "19500102"):
        assert planted not in message
        assert planted not in "".join(capfd.readouterr())
    assert len(recwarn) == shown


def test_messages_of_several_series_hold_no_text(tmp_path: Path) -> None:
    for number in range(3):
        own = set_all(**PLANTED | {"SeriesDescription": f"DOE^JOHN {number}", "ScanningSequence": f"DOE{number}", "Modality": f"JOHN{number}"})
        write(tmp_path / str(number), s6([own]))
    message = rejected(tmp_path, "found 3 volume(s) of 3 series", "they differ in modality")
    assert "DOE" not in message and "JOHN" not in message


def test_private_texts_are_no_b_values(tmp_path: Path) -> None:
    def plant(datasets: list[pydicom.Dataset]) -> None:
        for number, data in enumerate(datasets):
            data.private_block(0x0019, "SIEMENS MR HEADER", create=True).add_new(0x0C, "LO", f"DOE^JOHN{number % 2}")
            data.ImagePositionPatient = [0, 0, number // 2]

    assert "DOE" not in rejected(series(tmp_path, plant))


def test_thousands_of_files(tmp_path: Path) -> None:
    """3,000 slices are read in seconds."""
    stored = np.arange(3000 * 4).reshape(3000, 2, 2).astype(np.int16)
    folder = write(tmp_path, s6([set_each("ImagePositionPatient", [[0, 0, 2 * n] for n in range(3000)])], stored))
    begin = time.monotonic()
    headers, _ = sources.read_headers(sources.walk(folder), folder)
    assert len(headers) == 3000 and time.monotonic() - begin < 60
    assert read_header(folder / "7.dcm").frames[0].position == (0, 0, 14)
