"""What the documentation says is what the project does."""

import json
import re
from pathlib import Path

import pytest
import yaml

from teravox import config

REPOSITORY = Path(__file__).resolve().parents[1]
KEYS = [(key, part) for key, part in config.documented_keys() if part.get("type") != "object"]


@pytest.mark.parametrize(("key", "part"), KEYS, ids=[key for key, _ in KEYS])
def test_every_key_is_explained(key: str, part: dict[str, object]) -> None:
    """A row of config/README.md with the schema's own default and description."""
    rows = [line.split(" | ") for line in (REPOSITORY / "config" / "README.md").read_text().splitlines() if line.startswith(f"| `{key}` |")]
    assert len(rows) == 1
    assert rows[0][2] == (f"`{json.dumps(part['default'])}`" if "default" in part else "required")
    assert rows[0][3] == part["description"]


def test_no_key_is_explained_that_does_not_exist() -> None:
    keys, _, _ = (REPOSITORY / "config" / "README.md").read_text().partition("## The case table")
    explained = re.findall(r"^\| `([a-z0-9_.\[\]]+)` \|", keys, re.MULTILINE)
    assert set(explained) == {key for key, _ in KEYS}


def test_make_targets_of_the_readme_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    documents = "\n".join(path.read_text() for path in [REPOSITORY / "README.md", *REPOSITORY.glob("*/*.md")])
    named = set(re.findall(r"`make ([a-z-]+)", documents)) | set(re.findall(r"^    make ([a-z-]+)", documents, re.MULTILINE))
    assert {"run", "test"} <= named <= targets


def test_links_lead_somewhere() -> None:
    for document in [REPOSITORY / "README.md", *REPOSITORY.glob("*/*.md")]:
        for target in re.findall(r"\]\((?!https?://)([^)]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_conda_environments_pin_what_the_lock_pins() -> None:
    locked = dict(re.findall(r"^([a-z0-9_.-]+)==([^ ]+)", (REPOSITORY / "envs" / "requirements.lock").read_text(), re.MULTILINE))
    for path in (REPOSITORY / "envs").glob("*.yaml"):
        pins = next(item["pip"] for item in yaml.safe_load(path.read_text())["dependencies"] if isinstance(item, dict))
        assert pins and all(locked[name] == version for name, version in (pin.split("==") for pin in pins)), path.name


def test_lock_holds_hashes_and_no_address() -> None:
    text = (REPOSITORY / "envs" / "requirements.lock").read_text()
    assert "://" not in text
    blocks = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert len(blocks) > 50 and all("--hash=sha256:" in block for block in blocks)
