"""A tree of DICOM studies: series matched to channels by the configuration's rules, labels by what SEG and RTSTRUCT refer to."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from teravox import file_lists, files, hashing, pseudonyms, survey, survey_cases, survey_files, survey_tables
from teravox.errors import UserError
from teravox.layouts.case import Case
from teravox.layouts.folder import note
from teravox.survey import Entry


def read(config: dict[str, Any]) -> list[Case]:
    """The cases of a tree of DICOM files. Raises UserError.

    The tree's headers are read once, and again when a file's name, size or time has changed; what was found is kept in the private folder,
    since names of files and identifiers stand in it. A study with a volume for any channel is a case, its patient is PatientID.
    """
    root, private = Path(config["dataset"]["path"]), Path(config["private"])
    if not root.is_dir():
        raise UserError(f"{root}: missing or no folder, expected a tree of DICOM files")
    if private.resolve().is_relative_to(root.resolve()):
        raise UserError(f"{private}: the folder 'private' lies in the tree of DICOM files, expected it elsewhere")
    key = _key(private / "pseudonym.key", Path(config.get("results", "")))
    out = private / "survey" / hashing.text_digest(str(root.resolve()))[:12]
    entries = list(survey.tree(root))
    state = _state(entries, config, key)
    try:
        document = json.loads((out / survey_tables.CACHE).read_text(encoding="utf-8"))
        rows = document["cases"] if document["state"] == state else None
    except (OSError, ValueError, KeyError, TypeError):
        rows = None
    if rows is None:
        found = survey_tables.scan_with_progress(root, entries, survey_files.workers())
        closed, lost = survey.unreadable(found), sum(other.damaged for other in found.others)
        if closed and config.get("on_rejected", "stop") == "stop":
            raise UserError(
                f"{closed[0].path}: {closed[0].reason}, expected a tree that this user may read ({len(closed)} such); "
                "change the rights, or set on_rejected: exclude to go on without"
            )
        volumes, left = survey.volumes(found, config["ingest"])
        rows = survey_cases.cases(found, volumes, config["channels"], config["dataset"]["label"], key)
        try:
            survey_tables.write(out, found, volumes, left, rows, key, [channel["name"] for channel in config["channels"]], state=state)
        except OSError as error:
            raise UserError(f"{out}: not writable ({error.strerror}), expected a folder that can hold the survey of {root}") from None
        verdicts = Counter(volume.verdict for volume in volumes)
        note(f"{root}: {len(volumes)} volumes, {verdicts['rejected']} of them rejected by their headers; see {out}/series.tsv")
        if lost or closed:
            note(f"{root}: {lost} damaged files and {len(closed)} that may not be read are in no volume; see {out}/files.tsv")
        if not rows:
            raise UserError(f"{root}: no study has a volume that fits a channel's rules, expected one; see {out}/series.tsv, or survey it first")
    return [_case(row, out, f"{root} study {row['case']}") for row in rows]


def _key(path: Path, results: Path) -> bytes:
    """The key of the pseudonyms, which case names hold: so it is drawn here. Raises UserError where results were made with a lost one."""
    for document in [] if path.exists() else sorted(results.glob("ingest/*/case.json")):
        if pseudonyms.made_with_own_key(files.read_json(document)):
            raise UserError(f"{path}: missing, and {document} was made with it; bring it back, or move {results} away to have new pseudonyms")
    return pseudonyms.kept_key(path)


def _case(row: dict[str, Any], out: Path, where: str) -> Case:
    images = {name: str(out / "lists" / f"{token}{file_lists.SUFFIX}") for name, token in row["images"].items()}
    label = str(out / "lists" / f"{row['label']}{file_lists.SUFFIX}")
    fault = f"{where}: {'; '.join(row['faults'])}" if row["faults"] else ""
    return Case(row["case"], row["patient"], images, label, "train", where, fault=fault)


def _state(entries: Sequence[Entry], config: dict[str, Any], key: bytes) -> str:
    """Changes when a file of the tree comes, goes or changes, when a rule does, or the key."""
    rules = {"channels": [{name: channel[name] for name in ("name", "match")} for channel in config["channels"]]}
    rules |= {"dataset": config["dataset"], "tilt": config["ingest"]["tilt"]}
    lines = [f"{entry.path}\0{entry.reason}\0{entry.size}\0{entry.modified}" for entry in entries]
    return hashing.text_digest("\n".join([files.canonical_json(rules), pseudonyms.key_id(key), *lines]))
