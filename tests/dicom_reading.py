"""Reading small DICOM series in tests: what must come out, or the one line that refuses them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import AFFINE, EXPECTED, STORED, Change, s6, write
from teravox import checks, config, geometry
from teravox.dicom import series as reading
from teravox.errors import RejectedCase


def in_ras(stored: np.ndarray) -> np.ndarray:
    """(slice, row, column) of an axial series with ascending positions -> (x, y, z) in RAS order."""
    return stored.transpose(2, 1, 0)[::-1, ::-1]


OPTIONS = config.defaults("ingest")
NO_RULES = config.defaults("channels[].match")


def read(folder: Path, options: dict[str, Any] | None = None, **rules: Any) -> checks.Volume:
    return reading.read_series(folder, NO_RULES | rules, OPTIONS | (options or {}))


def canonical(folder: Path) -> tuple[np.ndarray, np.ndarray, checks.Volume]:
    volume = read(folder)
    return *geometry.to_canonical(volume.array, volume.affine), volume


def accepted(folder: Path, expected: np.ndarray = EXPECTED, affine: np.ndarray = AFFINE) -> checks.Volume:
    array, grid, volume = canonical(folder)
    np.testing.assert_allclose(array, expected, rtol=1e-6)
    np.testing.assert_allclose(grid, affine, atol=1e-4)
    assert volume.format == "dicom"
    return volume


def rejected(folder: Path, *words: str) -> str:
    with pytest.raises(RejectedCase) as caught:
        read(folder)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert message.startswith(str(folder))
    for word in words:
        assert word in message
    return message


def series(folder: Path, *changes: Change, stored: np.ndarray = STORED) -> Path:
    return write(folder / "series", s6(changes, stored))
