"""Damaged DICOM files of the kinds that the fuzz test found: each is refused for its own reason, or said to be left out."""

import gzip
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from pydicom.encaps import encapsulate, generate_frames
from pydicom.uid import DeflatedExplicitVRLittleEndian, ExplicitVRLittleEndian, JPEG2000Lossless, JPEGLSLossless, RLELossless

from builders import SR_STORAGE, STORED, compress, enhanced, s6, set_all, set_one, write
from dicom_reading import accepted, read, rejected, series
from teravox.dicom import decoders, witness

LARGE = np.kron(STORED, np.ones((1, 4, 4), np.int16))  # JPEG needs some rows
PRIVATE = "1.2.3.4.5"


def without_image(data: pydicom.Dataset, sop_class: str) -> pydicom.Dataset:
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = sop_class
    for keyword in ("Rows", "Columns", "PixelData"):
        delattr(data, keyword)
    return data


@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize("sop_class", [PRIVATE, "1.2.840.10008.5.1.4.1.1.999"])
def test_an_unknown_object_without_series_may_be_a_lost_slice(tmp_path: Path, number: int, sop_class: str) -> None:
    datasets = s6()
    without_image(datasets[number], sop_class)
    del datasets[number].SeriesInstanceUID
    assert f"{number}.dcm" in rejected(write(tmp_path, datasets), "image without PixelData")


def test_an_object_of_the_series_itself_is_left_out_as_a_correction(tmp_path: Path) -> None:
    datasets = s6(stored=np.concatenate([STORED, STORED[:1]]))
    without_image(datasets[6], SR_STORAGE)
    assert accepted(write(tmp_path / "own", datasets)).corrections == (
        "left out 1 file(s) of the series itself: object without an image: Basic Text SR Storage",
    )
    datasets[6].SeriesInstanceUID += ".1"
    assert not accepted(write(tmp_path / "other", datasets)).corrections


@pytest.mark.parametrize("value", [None, 3])
def test_a_sign_that_is_none(tmp_path: Path, value: int | None) -> None:
    rejected(series(tmp_path, set_all(PixelRepresentation=value)), "PixelRepresentation is missing or")


def test_pixels_stored_otherwise_than_the_transfer_syntax_says(tmp_path: Path) -> None:
    """Compressed pixels under an uncompressed syntax are numbers too, and more than enough of them when they did not shrink."""
    stored = np.random.default_rng(0).integers(-(2**15), 2**15, LARGE.shape).astype(np.int16)
    plain, packed = (write(tmp_path / name, s6(changes, stored)) for name, changes in (("plain", []), ("packed", [compress(RLELossless)])))
    for folder, old, new in ((plain, ExplicitVRLittleEndian, RLELossless), (packed, RLELossless, ExplicitVRLittleEndian)):
        for path in folder.iterdir():
            path.write_bytes(path.read_bytes().replace(old.encode() + b"\0", new.encode() + b"\0"))
    rejected(plain, "pixels of a length", "RLE")
    rejected(packed, "pixels of undefined length", "Explicit VR Little Endian")


@pytest.mark.parametrize("inside", ["cut", "no pixels"])
def test_damage_inside_gzip_is_told_of_the_file_itself(tmp_path: Path, inside: str) -> None:
    """Not of a copy in a folder that is gone."""
    folder = series(tmp_path)
    data = (folder / "2.dcm").read_bytes()
    (folder / "2.dcm").write_bytes(gzip.compress(data[:-30] if inside == "cut" else data[: -STORED[0].nbytes - 12]))
    assert rejected(folder).startswith(f"{folder / '2.dcm'}: ")


def test_a_deflated_file_with_damage_behind_its_pixels(tmp_path: Path) -> None:
    """An element of the file's first part: it can be read, but not be written again without deflation."""
    folder = series(tmp_path, deflate)
    accepted(folder)
    raw = (folder / "2.dcm").read_bytes()
    start = 144 + int.from_bytes(raw[140:144], "little")
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    damaged = zlib.decompress(raw[start:], -zlib.MAX_WBITS) + b"\x02\0\x10\0UI\x04\x001.2\0"
    (folder / "2.dcm").write_bytes(raw[:start] + packer.compress(damaged) + packer.flush())
    assert rejected(folder, "damaged").startswith(f"{folder / '2.dcm'}: ")


def deflate(datasets: list[pydicom.Dataset]) -> None:
    for data in datasets:
        data.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian


@pytest.mark.parametrize("syntax", [JPEG2000Lossless, JPEGLSLossless])
@pytest.mark.parametrize("fault", ["cut", "larger", "smaller"])
@pytest.mark.parametrize("frames", [1, 6])
def test_compressed_frames_say_what_the_header_says(tmp_path: Path, syntax: Any, fault: str, frames: int) -> None:
    """A frame that ends early, or of another size: decoders fill it up, or take memory for it."""

    def spoil(data: pydicom.Dataset, number: int) -> None:
        codes = list(generate_frames(data.PixelData, number_of_frames=frames))
        if fault == "cut":
            codes[number] = codes[number][: len(codes[number]) * 3 // 4]
        else:
            at = 8 if syntax == JPEG2000Lossless else codes[number].index(b"\xff\xf7") + 7
            size = (2**16 - 1 if fault == "larger" else 16).to_bytes(4 if syntax == JPEG2000Lossless else 2, "big")
            codes[number] = codes[number][:at] + size + codes[number][at + len(size) :]
        data.PixelData = encapsulate(codes)

    if frames == 1:
        folder = series(tmp_path, compress(syntax), lambda datasets: spoil(datasets[2], 0), stored=LARGE)
    else:
        data = enhanced(LARGE)
        data.compress(syntax, generate_instance_uid=False)
        spoil(data, 2)
        folder = write(tmp_path / "series", [data])
    rejected(folder, "no end marker" if fault == "cut" else "expected 32 x 40")


@pytest.mark.parametrize("signed", [0, 1])
@pytest.mark.parametrize("syntax", [JPEG2000Lossless, JPEGLSLossless])
def test_coded_values_of_more_bits_than_stored(tmp_path: Path, syntax: Any, signed: int) -> None:
    """Cut to BitsStored they would be noise; within it they stay, with or without their sign above it."""

    def declare(datasets: list[pydicom.Dataset]) -> None:
        for data in datasets:
            data.BitsStored, data.HighBit = 12, 11

    whole = set_all(PixelRepresentation=signed)
    small = np.clip(LARGE, -2048 if signed else 0, 2047).astype(np.int16)
    volume = read(series(tmp_path / "right", whole, compress(syntax), declare, stored=small))
    np.testing.assert_array_equal(volume.array, small.transpose(2, 1, 0))
    small[2, 3, 4] = 5000
    rejected(series(tmp_path / "wrong", whole, compress(syntax), declare, stored=small), "2.dcm", "more than 12 bits")


@pytest.mark.parametrize("place", [64, 70])
def test_rle_that_unpacks_to_too_much(tmp_path: Path, place: int) -> None:
    """The plug-in panics, which is no Exception."""

    def spoil(datasets: list[pydicom.Dataset]) -> None:
        code = next(generate_frames(datasets[2].PixelData, number_of_frames=1))
        datasets[2].PixelData = encapsulate([code[:place] + b"\x81\0" * 40 + code[place + 80 :]])

    assert "2.dcm" in rejected(series(tmp_path, compress(RLELossless), spoil, stored=LARGE), "pixels cannot be decoded")


def test_gdcm_does_not_confirm_what_it_has_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = series(tmp_path, compress(JPEG2000Lossless), stored=LARGE)
    finish = witness.finish
    monkeypatch.setattr(witness, "finish", lambda conversion: ([], finish(conversion)[1]))
    assert read(folder).checked_by == "GDCM"
    monkeypatch.setattr(decoders, "needs_gdcm", lambda syntax: syntax == JPEG2000Lossless)
    rejected(folder, "neither dcm2niix nor GDCM")


def test_a_padded_frame_is_whole(tmp_path: Path) -> None:
    def pad(datasets: list[pydicom.Dataset]) -> None:
        for data in datasets:
            data.PixelData = encapsulate([next(generate_frames(data.PixelData, number_of_frames=1)) + b"\0\0"])

    volume = read(series(tmp_path, compress(JPEG2000Lossless), pad, stored=LARGE))
    np.testing.assert_array_equal(volume.array, LARGE.transpose(2, 1, 0))


def test_a_slice_that_became_a_localizer_is_left_out_as_a_correction(tmp_path: Path) -> None:
    volume = read(series(tmp_path, set_one(5, ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"])))
    assert volume.corrections == ("left out 1 file(s) of the series itself: localizer",)
