"""What a survey found as tables and as lines for the terminal.

The tables of files and the lists name real files, so they belong into the private folder. The other tables hold no identifier and no free
text, unless the descriptions are asked for.
"""

import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml
from tqdm import tqdm

from teravox import file_lists, pseudonyms, survey, survey_cases
from teravox.dicom import match
from teravox.errors import UserError
from teravox.survey import Entry, Survey, Volume

SHOWN = 20  # kinds of volumes or faults that the terminal shows; the tables have all
CODED_SEQUENCE = {"SE", "IR", "GR", "EP", "RM", "SK", "MTC", "SS", "TRSS", "SP", "MP", "OSP"}  # PS3.3 C.8.3.1: other texts may be anything
COLUMNS = (
    *("patient", "study", "series", "volume", "verdict", "reason", "files", "modality", "orientation", "slices", "pixels", "spacing"),
    *("scan", "echo", "echo_time_ms", "b_value", "contrast", "component"),
)
TEXTS = ("description", "sequence", "image_type")  # what regular expressions look at
TABLES = ("series.tsv", "labels.tsv", "files.tsv", "cases.tsv")
CACHE = "cases.json"


def scan_with_progress(root: Path, entries: Sequence[Entry], workers: int) -> Survey:
    """`survey.scan` with a progress bar on standard error, if that is a terminal."""
    total = sum(not entry.reason for entry in entries)
    with tqdm(total=total, unit=" files", desc="headers", file=sys.stderr, disable=None) as bar:
        return survey.scan(root, entries, workers, bar.update)


def shown(text: str) -> str:
    """A text for a cell: whatever cannot be printed, a tab, a line break or a byte that is not UTF-8, becomes an escape as in Python."""
    return "".join(character if character.isprintable() and character != "\\" else ascii(character)[1:-1] for character in text)


def write(
    out: Path,
    found: Survey,
    volumes: list[Volume],
    left: dict[Path, str],
    rows: list[dict[str, Any]],
    key: bytes,
    channels: list[str],
    descriptions: bool = False,
    state: str = "",
) -> None:
    """Write the tables, and the lists of files they name, into a folder for this user alone. Raises UserError for another folder.

    state : what the rows hold for, kept with them. All is written aside first, so that a full disk or Ctrl-C leaves what was there.
    """
    known = {*TABLES, CACHE, "lists"}
    if out.exists() and {path.name for path in out.iterdir() if not path.name.startswith(".writing-")} - known:
        raise UserError(f"{out}: holds other files, expected a new folder, or one of an earlier survey")
    if not str(out).isprintable():
        raise UserError(f"{out!r}: expected a folder whose name can stand in a table")
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = out / f".writing-{os.getpid()}"
    (aside / "lists").mkdir(mode=0o700, parents=True)
    try:
        texts = TEXTS if descriptions else ()
        _table(aside / "series.tsv", [*COLUMNS, *texts], (series_row(volume, key, texts) for volume in volumes))
        _table(
            aside / "labels.tsv",
            ["label", "kind", "series", "structures", *(["names"] if descriptions else [])],
            label_rows(found, key, descriptions),
        )
        _table(aside / "files.tsv", ["file", "status", "series", "number", "reason"], file_rows(found, left, key))
        _table(aside / "cases.tsv", ["case", "patient", *channels, "label"], case_rows(out, rows, key))
        for token, paths in survey_cases.lists(found, key).items():
            document = json.dumps({"root": str(found.root.absolute()), "files": [str(path.relative_to(found.root)) for path in paths]})
            (aside / "lists" / f"{token}{file_lists.SUFFIX}").write_text(document, encoding="utf-8")
        (aside / CACHE).write_text(json.dumps({"state": state, "cases": rows}), encoding="utf-8")
        for name in (CACHE, "cases.tsv"):  # gone while the lists are not what they name
            (out / name).unlink(missing_ok=True)
        shutil.rmtree(out / "lists", ignore_errors=True)
        for name in ("lists", *TABLES, CACHE):
            (aside / name).replace(out / name)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _table(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        for row in (header, *rows):
            stream.write("\t".join(map(str, row)) + "\n")


def series_row(volume: Volume, key: bytes, texts: Sequence[str] = ()) -> list[Any]:
    """The cells of COLUMNS, and of some of TEXTS; a missing value is an empty cell."""
    header, about = volume.header, volume.stack.attributes
    modality = about["modality"] if about["modality"] in match.MODALITIES else "other" if about["modality"] else None
    values = {
        "patient": pseudonyms.pseudonym(volume.patient, key),
        "study": survey_cases.study_token(header, key),
        "series": survey_cases.series_token(header, key),
        "volume": volume.number,
        "verdict": volume.verdict,
        "reason": volume.reason,
        "files": len({id(frame.header) for frame in volume.stack.frames}),
        **about,
        "modality": modality,
        "scan": " ".join(part for part in about["sequence"].split("\\") if part in CODED_SEQUENCE),
        "contrast": "yes" if about["contrast"] else "no",
        **{name: shown(about[name]) for name in TEXTS},
    }
    return ["" if values[column] is None else values[column] for column in (*COLUMNS, *texts)]


def label_rows(found: Survey, key: bytes, names: bool) -> list[list[Any]]:
    """Every SEG and RTSTRUCT: the series of the tree that it refers to, and its segments or regions, whose names are free text."""
    known: dict[str, list[str]] = {}
    for study, series in survey.by_series(found):
        known.setdefault(series, []).append(survey_cases.token(f"{study} {series}", key))
    rows = []
    for label in found.labels:
        referred = [token for uid in label.once["referenced"] for token in known.get(uid, ["not in the tree"])]
        structures = label.once["structures"]
        row = [survey_cases.label_token(label, found.root, key), label.kind, ", ".join(referred) or "none named", len(structures)]
        rows.append([*row, *(["; ".join(map(shown, structures))] if names else [])])
    return rows


def file_rows(found: Survey, left: dict[Path, str], key: bytes) -> list[list[str]]:
    """Every file of the tree, once: the series it belongs to and its number in it, which messages name, or why it is skipped."""
    rows = []
    numbers = {path: str(number) for paths in survey.members(found).values() for number, path in enumerate(paths, start=1)}

    def row(path: Path, status: str, token: str, number: str, reason: str) -> list[str]:
        return [shown(str(path.relative_to(found.root))), status, token, number, shown(reason)]

    for header in found.images:
        status = "skipped" if header.path in left else "image"
        rows.append(row(header.path, status, survey_cases.series_token(header, key), numbers[header.path], left.get(header.path, "")))
    rows += [row(label.path, label.kind, survey_cases.label_token(label, found.root, key), "", "") for label in found.labels]
    for other in found.others:
        token = survey_cases.token(f"{other.study} {other.series}", key) if other.series else ""
        rows.append(row(other.path, "damaged" if other.damaged else "skipped", token, numbers.get(other.path, ""), other.reason))
    return sorted(rows)


def case_rows(out: Path, rows: list[dict[str, Any]], key: bytes) -> list[list[str]]:
    """The case table that rows make; a case with a fault is a comment, which the layout `table` leaves out, and ends with its fault."""
    found = []
    for row in rows:
        cells = [str(out / "lists" / f"{name}{file_lists.SUFFIX}") for name in (*row["images"].values(), row["label"])]
        found.append([row["case"], pseudonyms.pseudonym(row["patient"], key), *cells])
        if row["faults"]:
            found[-1] = [f"# {row['case']}", *found[-1][1:], "; ".join(row["faults"])]
    return found


def summary(found: Survey, volumes: list[Volume], left: dict[Path, str], rows: list[dict[str, Any]]) -> list[str]:
    """Lines for the terminal: counts, kinds of volumes with their verdicts, what is skipped and why, and the cases. No names."""
    studies, series = survey_cases.by_study(volumes), {volume.key for volume in volumes}
    patients = {volume.patient for volume in volumes}
    lines = [
        f"{len(patients)} patients, {len({study for _, study in studies})} studies, {len(series)} series, {len(volumes)} volumes; "
        f"{len(found.images)} image files, {len(found.labels)} SEG or RTSTRUCT, {len(found.others)} other files"
    ]
    nameless = len({header.study for header in found.images if not survey.patient_id(header)})
    if nameless:
        lines.append(f"note: images of {nameless} studies have no PatientID; a study without any is taken for a patient of its own")
    if len(patients) == 1 and len(studies) > 1:
        lines.append(f"note: all {len(studies)} studies have one PatientID: if they are of several patients, no split can keep these apart")
    mixed = [study for study, count in Counter(study for _, study in studies).items() if count > 1]
    if mixed:
        lines.append(f"note: {len(mixed)} StudyInstanceUIDs stand for several patients; each patient's part is a study of its own")
    verdicts = Counter(volume.verdict for volume in volumes)
    counted = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items())) or "none"
    lines.append(f"volumes: {counted} by their headers; pixels are read at ingestion")
    lines += [f"  {line}" for line in kinds(volumes)]
    reasons = Counter(survey.kind(volume.reason) for volume in volumes if volume.reason)
    lines += [f"  {count} rejected: {why}" for why, count in reasons.most_common(SHOWN)]
    lines += [f"labels: {count} {kind}" for kind, count in sorted(Counter(label.kind for label in found.labels).items())]
    skipped = Counter(survey.kind(reason) for reason in left.values()) + Counter(
        survey.kind(other.reason) for other in found.others if not other.damaged
    )
    lines += [f"skipped: {count} files: {why}" for why, count in skipped.most_common(SHOWN)]
    lost = Counter(survey.kind(other.reason) for other in found.others if other.damaged)
    lines += [f"damaged: {count} files: {why}" for why, count in lost.most_common(SHOWN)]
    lines.append(f"cases: {len(rows)} studies fit the channels' rules, {sum(bool(row['faults']) for row in rows)} of them with a fault")
    lines += [f"  {count}: {why}" for why, count in Counter(fault for row in rows for fault in row["faults"]).most_common(SHOWN)]
    return lines


def kinds(volumes: list[Volume]) -> list[str]:
    """What kinds of volumes there are, by what coded rules can ask for, the most frequent first."""
    groups: dict[tuple[str, ...], list[Volume]] = {}
    for volume in volumes:
        about = dict(zip(COLUMNS, series_row(volume, b"\0" * pseudonyms.KEY_BYTES), strict=True))
        words = [str(about["modality"] or "no modality"), str(about["orientation"] or "no orientation"), str(about["scan"])]
        words += [f"{name} {about[name]}" for name in ("echo", "b_value") if about[name] != ""]
        words += ["contrast" if about["contrast"] == "yes" else "", str(about["component"])]
        groups.setdefault(tuple(word for word in words if word), []).append(volume)
    lines = []
    for kind, members in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        slices = [volume.stack.attributes["slices"] for volume in members]
        span = str(min(slices)) if min(slices) == max(slices) else f"{min(slices)} to {max(slices)}"
        studies = len(survey_cases.by_study(members))
        lines.append(f"{len(members)} in {studies} studies: {', '.join(kind)}; {span} slices")
    return lines[:SHOWN] + ([f"and {len(lines) - SHOWN} kinds more, see series.tsv"] if len(lines) > SHOWN else [])


def proposal(root: Path, volumes: list[Volume]) -> list[str]:
    """Blocks of a configuration as YAML to paste; what the rules leave open is a comment. The last ones undo the demo's own."""
    lines = yaml.safe_dump({"dataset": {"layout": "dicom", "path": str(root)}}, sort_keys=False).splitlines()
    lines.append("channels:")
    for channel in survey_cases.proposed_channels(volumes):
        text = yaml.safe_dump(channel, sort_keys=False, default_flow_style=True, width=10**6).strip()
        counts = survey_cases.fitting(volumes, channel["match"])
        lines.append(f"  - {text}  # {counts['one']} studies have one such volume, {counts['several']} have several")
    return [*lines, "regions: []", 'evaluate: {picture_channel: ""}']
