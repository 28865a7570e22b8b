"""A training that cannot run is refused with one line before anything is read or written."""

import argparse
import json
from pathlib import Path

import pytest

import train
from teravox import numa
from teravox.errors import UserError

SETTINGS = {"seed": 1, "channels": [{"name": "t1", "normalise": "zscore"}], "labels": [{"name": "a", "value": 1}]}


def arguments(folder: Path, shape: list[int], fold: int = 0) -> argparse.Namespace:
    fingerprint = folder / "fold0.json"
    fingerprint.write_text(json.dumps({"fold": 0, "shapes": {"big": shape}, "cases": {"big": {}}, "channels": {}}))
    settings = {**SETTINGS, "train": {"levels": 2, "filters": 8, "steps": 1, "threads": 1, "patch_size": None}}
    return argparse.Namespace(settings=settings, fingerprint=fingerprint, fold=fold, shards=folder, count=1, prefetch_mb=1, out=folder / "out")


def test_a_tensor_beyond_the_limit(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^fold 0: case 'big' needs a tensor of 2147483648 elements, at most 2147483647 are possible; use a"):
        train.main(arguments(tmp_path, [512, 512, 512]))
    assert not (tmp_path / "out").exists()


def test_more_memory_than_is_granted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numa, "granted_bytes", lambda: 10**9)
    with pytest.raises(UserError, match=r"^training fold 0 needs \d+\.\d\d GB, 1.00 GB are available; use a coarser"):
        train.main(arguments(tmp_path, [400, 400, 400]))
    assert not (tmp_path / "out").exists()


def test_the_fingerprint_of_another_fold(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is that of fold 0, expected fold 3"):
        train.main(arguments(tmp_path, [8, 8, 8], fold=3))
