"""A tree of DICOM studies: series matched to channels by the configuration's rules, labels by what SEG and RTSTRUCT refer to."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from teravox import config as configuration
from teravox import file_lists, files, hashing, pseudonyms, survey, survey_tables
from teravox.errors import UserError
from teravox.layouts.case import Case
from teravox.layouts.folder import note


def read(config: dict[str, Any]) -> list[Case]:
    """The cases of a tree of DICOM files. Raises UserError.

    The tree's headers are read once, and again when a file's name, size or time has changed; what was found is kept in the private folder,
    since names of files and identifiers stand in it. A study with a volume for any channel is a case, its patient is PatientID.
    """
    root, private = Path(config["dataset"]["path"]), Path(config["private"])
    if not root.is_dir():
        raise UserError(f"{root}: missing or no folder, expected a tree of DICOM files")
    key = pseudonyms.kept_key(private / "pseudonym.key")
    rules = {name: configuration.stage_settings(config, "ingest")[name] for name in ("channels", "ingest")} | {"dataset": config["dataset"]}
    out = private / "survey" / hashing.text_digest(str(root.resolve()))[:12]
    state = _state(root, rules, key)
    try:
        document = json.loads((out / "cases.json").read_text(encoding="utf-8"))
        known = document["state"] == state
    except (OSError, ValueError, KeyError, TypeError):
        known = False
    if not known:
        found = survey_tables.scan_with_progress(root, survey.workers())
        volumes = survey.volumes(found.images, config["ingest"])
        rows = survey_tables.cases(found, volumes, config["channels"], config["dataset"]["label"], key)
        survey_tables.write(out, found, volumes, rows, [channel["name"] for channel in config["channels"]], key, False)
        document = {"state": state, "cases": rows}
        with files.atomic(out / "cases.json") as temporary:
            temporary.write_text(files.canonical_json(document), encoding="utf-8")
        reasons = Counter(volume.verdict for volume in volumes)
        note(f"{root}: {len(volumes)} volumes, {reasons['rejected']} of them rejected by their headers; see {out}/series.tsv")
    return [_case(row, out, f"{root} study {row['case']}") for row in document["cases"]]


def _case(row: dict[str, Any], out: Path, where: str) -> Case:
    return Case(
        row["case"],
        row["patient"],
        {name: str(out / "lists" / f"{token}{file_lists.SUFFIX}") for name, token in row["images"].items()},
        str(out / "lists" / f"{row['label']}{file_lists.SUFFIX}"),
        "train",
        where,
        fault=row["fault"],
    )


def _state(root: Path, rules: dict[str, Any], key: bytes) -> str:
    """Changes when a file of the tree comes, goes or changes, when a rule does, or the key."""
    entries = []
    for path, why in survey.tree(root):
        status = path.lstat()
        entries.append(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0{why}")
    return hashing.text_digest("\n".join([files.canonical_json(rules), pseudonyms.key_id(key), *entries]))
