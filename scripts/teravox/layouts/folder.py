"""Looking into a data set's folder without being led out of it, and reading the JSON that describes it."""

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from teravox.errors import UserError

DESCRIPTION_BYTES = 1 << 26  # 64 MB: the paths of more than 100,000 cases


def note(text: str) -> None:
    """Say in one line what of a data set is left out; on standard error, since standard output may be a table or a graph."""
    print("note:", *text.split(), file=sys.stderr)


def leads_inside(folder: Path, path: Path) -> bool:
    """Whether a path lies in a folder once links are followed; it need not exist."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def inside(folder: Path, relative: str, where: str) -> Path:
    """The path of something in a folder, links followed. Raises UserError when it lies elsewhere; it need not exist.

    relative : as written in a description or listed; where : begins the message.
    """
    printable = relative.isprintable()  # neither a line break nor a zero byte
    path = folder / relative
    away = Path(relative).is_absolute() or ".." in Path(relative).parts
    if not printable or away or not leads_inside(folder, path):
        shown = f"'{relative[:200]}'" if printable else repr(relative[:200])
        raise UserError(f"{where}: path {shown} leads out of the folder, or is none; copy the data to a path inside {folder}")
    return path


def visible(folder: Path) -> list[str]:
    """Names in a folder in order, hidden ones (`.DS_Store`, `._x.nii.gz`) left out. Raises UserError when it cannot be listed."""
    try:
        return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror or type(error).__name__}; expected a folder of the data set") from None


def stands(path: Path) -> bool:
    """Whether this user sees something at a path; names that are too long and folders that are closed hold nothing."""
    try:
        return path.exists()
    except OSError:
        return False


def first_fault(paths: Iterable[Path]) -> str:
    """One line for the first path at which something other than a file stands; "" when there is none. A missing file is no fault."""
    for path in paths:
        if stands(path) and not path.is_file():
            return f"{path}: a folder or device, expected a volume in one file; rename or remove it"
    return ""


def read_description(folder: Path, name: str, kind: str) -> dict[str, Any]:
    """The JSON object in `name` that describes the data set in `folder`. Raises UserError: missing, no JSON object, a key twice.

    kind : what the folder should be, for the message ("an nnU-Net raw folder").
    """
    path = inside(folder, name, str(folder))
    if not path.is_file():
        raise UserError(f"{path}: missing; expected {kind}")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) != len(pairs):
            raise ValueError("a key stands more than once")
        return value

    try:
        if path.stat().st_size > DESCRIPTION_BYTES:
            raise ValueError(f"more than {DESCRIPTION_BYTES} bytes")
        description = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=once)
    except (OSError, ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise UserError(f"{path}: not readable as JSON ({' '.join(str(error).split())}); expected {kind}") from None
    if not isinstance(description, dict):
        raise UserError(f"{path}: found {type(description).__name__}, expected a JSON object as in {kind}")
    return description
