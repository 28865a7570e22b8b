"""What a case was read from: names, sizes and hashes of its source files, and whether they changed since.

Snakemake compares inputs above 1 MB by time alone, and cannot look into a folder. So a case's sources enter its ingestion
through one parameter, made here: it changes when a file's bytes, size or name changed, and not when a file was only touched.
"""

import json
import os
from pathlib import Path
from typing import Any

from teravox import companions, files, hashing, records

Member = dict[str, Any]
VOXELS = "voxels"  # the name of a header's second file, whatever it is called
UNREADABLE = "unreadable"  # no hash: such a file is tried again every time, since permissions change without its time


def members(path: Path) -> list[tuple[Path, str]]:
    """Every file of a source with its name relative to it: a folder is walked, a file is its first member ("").

    A volume in two files has both, whichever of them is named: the header ("") and the file of its voxels (VOXELS). Links to
    folders are not followed; links to nothing, pipes and devices are no members. A source that does not exist has none.
    """
    if path.is_file():
        header, voxels = companions.files_of(path)
        return [(header, ""), *([(voxels, VOXELS)] if voxels else [])]
    inside = [Path(folder) / name for folder, _, names in os.walk(path) for name in names]
    return sorted(((member, str(member.relative_to(path))) for member in inside if member.is_file()), key=lambda member: member[1])


def _stat(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _name_digest(name: str) -> str:
    """A name inside a folder may be a person's: only its hash is kept. It need not be UTF-8."""
    return hashing.text_digest(name.encode("utf-8", "backslashreplace").decode())[:16] if name else ""


def _member(path: Path, name: str) -> Member:
    """Size and hash of a file; a file that this user may not read has the content UNREADABLE."""
    try:
        content = hashing.file_digest(path)
    except OSError:
        content = UNREADABLE
    return {"name": _name_digest(name), "bytes": path.stat().st_size, "content": content}


def take(sources: dict[str, str]) -> tuple[dict[str, list[Member]], dict[str, list[list[int]]]]:
    """Hash every source. Returns the manifest (role -> members) and the stat (role -> [bytes, mtime in ns] per member).

    A source that does not exist has no members.
    """
    manifest, stats = {}, {}
    for role, source in sources.items():
        found = members(Path(source))
        manifest[role] = [_member(path, name) for path, name in found]
        stats[role] = [_stat(path) for path, _ in found]
    return manifest, stats


def digest(part: Any) -> str:
    """One hash for a manifest or for one role's members."""
    return hashing.text_digest(files.canonical_json(part))


def request(document: Path, sources: dict[str, str]) -> str:
    """The parameter that a case's ingestion is compared by: the recorded one while the sources hold what the document says.

    document : the case.json of an earlier ingestion; without one the job runs anyway and the parameter is empty. Files whose
    size and time are those of the record are taken as unchanged, others are hashed. A volume of the case that is gone counts as
    a change too. Nothing is written.
    """
    try:
        made = json.loads(document.read_text(encoding="utf-8"))
        recorded, volumes = made["sources"], made["provenance"]["artefacts"]
        run = json.loads(records.run_path(document).read_text(encoding="utf-8"))
        known, earlier = run["sources"], run["request"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    manifest: dict[str, list[Member]] = {}
    for role, source in sources.items():
        found = members(Path(source))
        same = role in known and len(found) == len(known[role])
        manifest[role] = []
        for position, (path, name) in enumerate(found):
            before = recorded[role][position] if same else {}
            unchanged = same and before["name"] == _name_digest(name) and before["content"] != UNREADABLE and _stat(path) == known[role][position]
            manifest[role].append(before if unchanged else _member(path, name))
    lost = [name for name in volumes if not document.with_name(name).exists()]  # no rule names them: a rejected case has none
    if manifest != recorded:
        return digest(manifest)
    return digest([earlier, lost]) if lost else earlier
