"""Bounds and damage: hostile headers, memory, what lies behind the voxels, and random files against nibabel or the file before."""

import gzip
import itertools
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
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from nibabel.nifti1 import Nifti1Pair
from nibabel.nifti2 import Nifti2Pair

import builders
from builders import write_nifti
from teravox import checks, geometry, manifest, numa, voxels
from teravox.errors import RejectedCase
from test_volume_files import AFFINE, MHD_FIELDS, NHDR_FIELDS, PAIRS, SINGLES, read
from test_volumes import NOISE, NRRD_FIELDS, VALUES, mha, nrrd, rejected

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


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
    """A header and 1 GB of zeros behind it, compressed to a few MB."""
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
print("", next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))  # ru_maxrss begins with that of the parent
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
    try:
        image.set_qform(affine, forms[1])
        image.set_sform(affine, forms[0])
    except ValueError:  # nibabel reads its own float64 quaternion back with a tolerance that rounding can exceed: no file comes of it
        assume(False)
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
