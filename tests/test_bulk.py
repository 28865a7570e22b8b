"""Files read and written by position, and sources unpacked without a name."""

import gzip
import os
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from teravox import bulk, files, hashing, store
from teravox.errors import UserError
from test_geometry import affine_of

RNG = np.random.default_rng(0)
AFFINE = affine_of((0, 1, 2), (1, 1, 1), (0.7, 0.8, 2.5), (12.3, -45.6, 78.9), (10, -20, 15)).astype(np.float32).astype(np.float64)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16, np.int32, np.float32])
def test_a_file_holds_what_was_written_wherever_it_was(tmp_path: Path, dtype: type) -> None:
    array: np.ndarray = RNG.integers(0, 200, (5, 6, 7, 2)).astype(dtype)
    path = tmp_path / "a.nii"
    with bulk.create(path, array.shape, np.dtype(dtype), AFFINE) as volume:
        for channel in (1, 0):
            for z0, z1, y0, y1 in ((3, 7, 0, 6), (0, 3, 2, 6), (0, 3, 0, 2)):
                volume.write(np.ascontiguousarray(array[:, y0:y1, z0:z1, channel].T), z0, y0, channel)
        assert volume.digest() == hashing.volume_digest(array, AFFINE)
        np.testing.assert_array_equal(volume.read(2, 5, 1, 3, 1), array[:, 1:3, 2:5, 1].T)
        np.testing.assert_array_equal(np.concatenate(list(volume.parts(1))), array[..., 1].T)
    image = nib.load(path)
    assert image.get_data_dtype() == dtype and path.stat().st_size == 352 + array.nbytes
    np.testing.assert_array_equal(np.asanyarray(image.dataobj), array)
    np.testing.assert_array_equal(image.affine, AFFINE)
    np.testing.assert_allclose(image.get_qform(), AFFINE, atol=1e-5)
    with bulk.opened(path) as volume:
        assert volume.shape == array.shape and volume.grid.shape == (5, 6, 7)
        np.testing.assert_array_equal(volume.read(0, 7, 0, 6, 0), array[..., 0].T)


def test_parts_of_some_planes_or_rows_are_the_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = RNG.integers(0, 200, (5, 6, 7)).astype(np.int16)
    monkeypatch.setattr(bulk, "CHUNK_BYTES", 2 * 5 * 6 * 2)
    with bulk.temporary(tmp_path, array.shape, array.dtype, AFFINE) as volume:
        volume.write(np.ascontiguousarray(array.T), 0, 0)
        assert [slab.shape[0] for slab in volume.parts()] == [2, 2, 2, 1]
        np.testing.assert_array_equal(np.concatenate(list(volume.parts())), array.T)
        monkeypatch.setattr(bulk, "CHUNK_BYTES", 4 * 5 * 2)  # less than a plane
        assert [(z0, y0, block.shape) for z0, y0, block in volume.blocks()][:3] == [(0, 0, (1, 4, 5)), (0, 4, (1, 2, 5)), (1, 0, (1, 4, 5))]
        np.testing.assert_array_equal(np.concatenate([part.ravel() for part in volume.parts()]), array.T.ravel())
        assert volume.digest() == hashing.volume_digest(array, AFFINE)


def test_a_long_axis_needs_the_second_format(tmp_path: Path) -> None:
    path = tmp_path / "long.nii"
    with bulk.create(path, (40000, 1, 2), np.dtype(np.uint8), np.eye(4)) as volume:
        volume.write(np.full((1, 1, 40000), 9, np.uint8), 1, 0)
    image = nib.load(path)
    assert isinstance(image, nib.Nifti2Image) and image.shape == (40000, 1, 2)
    assert np.asanyarray(image.dataobj)[:, 0].sum(axis=0).tolist() == [0, 360000]
    with bulk.opened(path) as volume:
        assert volume.read(1, 2, 0, 1).sum() == 360000


def test_a_call_moves_as_much_as_it_can_and_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CALL_BYTES", 17)
    array = RNG.integers(0, 200, (5, 6, 7)).astype(np.int16)
    with bulk.temporary(tmp_path, array.shape, array.dtype, AFFINE) as volume:
        volume.write(np.ascontiguousarray(array.T), 0, 0)
        np.testing.assert_array_equal(volume.read(0, 7, 0, 6), array.T)


def case(folder: Path) -> tuple[Path, np.ndarray, dict[str, object]]:
    array = RNG.integers(-5, 200, (40, 30, 20)).astype(np.int16)
    path = folder / "t1.nii.gz"
    digest = store.write(path, array, AFFINE)
    return path, array, {"provenance": {"stage": "ingest", "artefacts": {"t1.nii.gz": digest}}}


def test_unpacked_is_the_volume_and_leaves_nothing(tmp_path: Path) -> None:
    path, array, document = case(tmp_path)
    with bulk.unpacked(path, document, tmp_path) as volume:
        np.testing.assert_array_equal(volume.read(0, 20, 0, 30), array.T)
        np.testing.assert_array_equal(volume.affine, AFFINE)
        assert [entry.name for entry in tmp_path.iterdir()] == ["t1.nii.gz"]  # the scratch file has no name
    assert [entry.name for entry in tmp_path.iterdir()] == ["t1.nii.gz"]


@pytest.mark.parametrize("kept", [0, 5, 100, 2000, -9, -1])
def test_a_file_that_ends_early_is_one_line(tmp_path: Path, kept: int) -> None:
    path, _, document = case(tmp_path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(UserError, match=r"t1\.nii\.gz: (damaged|content hash)") as caught, bulk.unpacked(path, document, tmp_path):
        pass
    assert "\n" not in str(caught.value) and "--forcerun ingest_case" in str(caught.value)


def test_a_changed_byte_anywhere_is_one_line(tmp_path: Path) -> None:
    path, _, document = case(tmp_path)
    good = path.read_bytes()
    for place in [*range(40), *range(100, len(good), len(good) // 40)]:
        path.write_bytes(good[:place] + bytes([good[place] ^ 0x55]) + good[place + 1 :])
        try:
            with bulk.unpacked(path, document, tmp_path) as volume:
                assert volume.shape == (40, 30, 20)  # a byte of the gzip header that means nothing
                assert place < 10
        except UserError as error:
            assert "t1.nii.gz: " in str(error) and "\n" not in str(error)


def test_another_volume_or_none_is_one_line(tmp_path: Path) -> None:
    path, array, document = case(tmp_path)
    store.write(path, array + np.int16(1), AFFINE)
    with pytest.raises(UserError, match="content hash"), bulk.unpacked(path, document, tmp_path):
        pass
    path.write_bytes(gzip.compress(b"x" * 400))
    with pytest.raises(UserError, match=r"t1\.nii\.gz: damaged|content hash"), bulk.unpacked(path, document, tmp_path):
        pass
    path.write_bytes(b"no gzip at all")
    with pytest.raises(UserError, match="damaged"), bulk.unpacked(path, document, tmp_path):
        pass
    path.unlink()
    with pytest.raises(UserError, match="missing"), bulk.unpacked(path, document, tmp_path):
        pass


def test_a_file_shorter_than_its_header_says_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.nii"
    with bulk.create(path, (5, 6, 7), np.dtype(np.int16), AFFINE):
        pass
    with bulk.opened(path) as volume:
        os.truncate(path, 400)
        with pytest.raises(UserError, match="ends before its last voxel"):
            volume.read(0, 7, 0, 6)
    with pytest.raises(EOFError, match="ends after 400 bytes, expected 772"), bulk.opened(path):
        pass
