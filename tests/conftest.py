"""Fixtures that several test files share."""

import os
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with real data beside the repository. Without it a test is skipped, or fails where TERAVOX_REQUIRE_SHARED is set."""
    if not SHARED.is_dir():
        reason = f"no folder {SHARED} with real data"
        if os.environ.get("TERAVOX_REQUIRE_SHARED"):
            pytest.fail(f"{reason}, though TERAVOX_REQUIRE_SHARED is set")
        pytest.skip(reason)
    return SHARED
