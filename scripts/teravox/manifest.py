"""What a case was read from: names, sizes and hashes of its source files, and whether they changed since.

Snakemake compares inputs above 1 MB by time alone, and cannot look into a folder. So a case's sources enter its ingestion
through one parameter, made here: it changes when a file's bytes, size or name changed, and not when a file was only touched.
"""

import json
import os
from pathlib import Path
from typing import Any

from teravox import files, hashing, records

Member = dict[str, Any]


def members(path: Path) -> list[tuple[Path, str]]:
    """Every file of a source with its name relative to it: a file is its only member (""), a folder is walked, links not followed."""
    if path.is_file():
        return [(path, "")]
    found = []
    for folder, _, names in os.walk(path):
        found += [(Path(folder) / name, str((Path(folder) / name).relative_to(path))) for name in names]
    return sorted(found, key=lambda member: member[1])


def _stat(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _member(path: Path, name: str) -> Member:
    # A name inside a folder may be a person's: only its hash is kept.
    return {"name": hashing.text_digest(name)[:16] if name else "", "bytes": path.stat().st_size, "content": hashing.file_digest(path)}


def take(sources: dict[str, str]) -> tuple[dict[str, list[Member]], dict[str, list[list[int]]]]:
    """Hash every source. Returns the manifest (role -> members) and the stat (role -> [bytes, mtime in ns] per member).

    A source that does not exist has no members.
    """
    manifest, stats = {}, {}
    for role, source in sources.items():
        found = members(Path(source)) if Path(source).exists() else []
        manifest[role] = [_member(path, name) for path, name in found]
        stats[role] = [_stat(path) for path, _ in found]
    return manifest, stats


def digest(part: Any) -> str:
    """One hash for a manifest or for one role's members."""
    return hashing.text_digest(files.canonical_json(part))


def request(document: Path, sources: dict[str, str]) -> str:
    """The parameter that a case's ingestion is compared by: the recorded one while the sources hold what the document says.

    document : the case.json of an earlier ingestion; without one the job runs anyway and the parameter is empty. Files whose
    size and time are those of the record are taken as unchanged, others are hashed. Nothing is written.
    """
    try:
        recorded = json.loads(document.read_text(encoding="utf-8"))["sources"]
        run = json.loads(records.run_path(document).read_text(encoding="utf-8"))
        known, earlier = run["sources"], run["request"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    manifest: dict[str, list[Member]] = {}
    for role, source in sources.items():
        found = members(Path(source)) if Path(source).exists() else []
        same = role in known and len(found) == len(known[role])
        manifest[role] = []
        for position, (path, name) in enumerate(found):
            label = hashing.text_digest(name)[:16] if name else ""
            unchanged = same and recorded[role][position]["name"] == label and _stat(path) == known[role][position]
            manifest[role].append(recorded[role][position] if unchanged else _member(path, name))
    return earlier if manifest == recorded else digest(manifest)
