"""A source that names its files: a small JSON file `*.series.json`, made by the survey of a DICOM tree."""

import json
from pathlib import Path

from teravox.errors import RejectedCase

SUFFIX = ".series.json"


def is_list(path: Path) -> bool:
    return path.name.endswith(SUFFIX)


def listed_files(path: Path) -> list[Path]:
    """The files that a list names: {"root": folder, "files": [names below it]}. Raises RejectedCase."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        root, names = Path(document["root"]), [str(name) for name in document["files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RejectedCase(f"{path}: not readable as a list of files ({type(error).__name__}); make the survey again") from None
    for name in names:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise RejectedCase(f"{path}: names a file outside its root, expected names below it; make the survey again")
    missing = sum(not (root / name).is_file() for name in names)
    if missing:
        raise RejectedCase(f"{path}: {missing} of its {len(names)} files are missing; bring them back, or make the survey again")
    return [root / name for name in names]
