"""What a case was read from: names, sizes and hashes of its source files, and whether they changed since.

Snakemake compares inputs above 1 MB by time alone, and cannot look into a folder. So a case's sources enter its ingestion
through one parameter, made here: it changes when a file's bytes, size or name changed, and not when a file was only touched.
"""

import json
import os
from pathlib import Path
from typing import Any

from teravox import companions, file_lists, files, hashing, pseudonyms, records
from teravox.errors import RejectedCase

Member = dict[str, Any]
VOXELS = "voxels"  # the name of a header's second file, whatever it is called
UNREADABLE = "unreadable"  # no hash: such a file is tried again every time, since permissions change without its time


def members(path: Path) -> list[tuple[Path, str]]:
    """Every file of a source with its name relative to it: a folder is walked, a file is its first member ("").

    A volume in two files has both, whichever of them is named: the header ("") and the file of its voxels (VOXELS). A list of files has
    those it names, a damaged list is its own only member. Links to folders are not followed; links to nothing, pipes and devices are no
    members. A source that does not exist has none.
    """
    if file_lists.is_list(path):
        try:
            return sorted(((member, member.name) for member in file_lists.listed_files(path)), key=lambda member: str(member[0]))
        except RejectedCase:
            pass
    if path.is_file():
        header, voxels = companions.files_of(path)
        return [(header, ""), *([(voxels, VOXELS)] if voxels else [])]
    inside = [Path(folder) / name for folder, _, names in os.walk(path) for name in names]
    return sorted(((member, str(member.relative_to(path))) for member in inside if member.is_file()), key=lambda member: member[1])


def places(sources: dict[str, str]) -> dict[str, str]:
    """For every file inside a folder or list what to call it instead: names there come from outside, and may be a person's.

    A file is named by its number in name order. A folder's own path stays, since the user wrote it; a list is called by its role, which
    says more. Longer paths come first.
    """
    found: dict[str, str] = {}
    for role, source in sources.items():
        inside, listed = members(Path(source)), file_lists.is_list(Path(source))
        name = role if listed else source
        if len(inside) != 1 or inside[0][1]:
            found |= {str(path): f"{name}: file {number} of {len(inside)}" for number, (path, own) in enumerate(inside, start=1) if own != VOXELS}
        if listed:
            found[source] = role
    return dict(sorted(found.items(), key=lambda item: -len(item[0])))


def _stat(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _name_hash(name: str, key: bytes) -> str:
    """A name inside a folder may be a person's: only its keyed hash is kept."""
    return pseudonyms.name_hash(name, key) if name else ""


def _member(path: Path, name: str, key: bytes) -> Member:
    """Size and hash of a file; a file that this user may not read has the content UNREADABLE."""
    try:
        content = hashing.file_digest(path)
    except OSError:
        content = UNREADABLE
    return {"name": _name_hash(name, key), "bytes": path.stat().st_size, "content": content}


def take(sources: dict[str, str], key: bytes) -> tuple[dict[str, list[Member]], dict[str, list[list[int]]]]:
    """Hash every source. Returns the manifest (role -> members) and the stat (role -> [bytes, mtime in ns] per member).

    A source that does not exist has no members. key : that of the names' hashes.
    """
    manifest, stats = {}, {}
    for role, source in sources.items():
        found = members(Path(source))
        manifest[role] = [_member(path, name, key) for path, name in found]
        stats[role] = [_stat(path) for path, _ in found]
    return manifest, stats


def digest(part: Any) -> str:
    """One hash for a manifest or for one role's members."""
    return hashing.text_digest(files.canonical_json(part))


def request(document: Path, sources: dict[str, str], key: bytes) -> str:
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
            unchanged = same and before["name"] == _name_hash(name, key) and before["content"] != UNREADABLE and _stat(path) == known[role][position]
            manifest[role].append(before if unchanged else _member(path, name, key))
    lost = [name for name in volumes if not document.with_name(name).exists()]  # no rule names them: a rejected case has none
    if manifest != recorded:
        return digest(manifest)
    return digest([earlier, lost]) if lost else earlier
