"""What a survey found as tables: series and volumes, every file, and the cases that rules make of them.

The tables of files and the lists name real files, so they belong into the private folder. The table of series holds no identifier and no
free text, unless the descriptions are asked for.
"""

import csv
import json
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tqdm import tqdm

from teravox import file_lists, files, pseudonyms, survey
from teravox.dicom import match
from teravox.dicom.headers import Header
from teravox.errors import RejectedCase
from teravox.survey import Survey, Volume

SHOWN = 20  # kinds of faults that the terminal shows; the tables have all
TOKEN_DIGITS = 12  # of a series' keyed hash, in names of lists and in tables
COLUMNS = (
    *("patient", "study", "series", "volume", "verdict", "reason", "files", "modality", "orientation", "slices", "pixels", "spacing"),
    *("echo", "echo_time_ms", "b_value", "contrast", "component"),
)


def scan_with_progress(root: Path, workers: int) -> Survey:
    """`survey.scan` with a progress bar on standard error."""
    total = sum(1 for _, why in survey.tree(root) if not why)
    with tqdm(total=total, unit=" files", desc="headers", file=sys.stderr, disable=None) as bar:
        return survey.scan(root, workers, bar.update)


def token(uid: str, key: bytes) -> str:
    return pseudonyms.uid_hash(uid, key)[:TOKEN_DIGITS]


def patient_of(header: Header) -> str:
    """PatientID, or the study where there is none: nothing then says which studies are of one patient."""
    return str(header.once["PatientID"] or header.study)


def study_name(header: Header, key: bytes) -> str:
    """The case of a study: the patient's pseudonym and a keyed hash of the study."""
    return f"{pseudonyms.pseudonym(patient_of(header), key)}_{token(header.study, key)[:8]}"


def proposed_channels(volumes: list[Volume]) -> list[dict[str, Any]]:
    """Channels with rules that tell apart what at least half of the studies have, from coded attributes alone; for a survey without rules.

    Modality, plane, contrast agent, echo, b-value and colour are looked at. Series that differ only in their descriptions fall together.
    """
    keys = ("modality", "contrast", "orientation", "echo", "b_value", "component")
    studies: dict[tuple[Any, ...], set[str]] = {}
    for volume in volumes:
        if volume.verdict == "ok":
            about = volume.stack.attributes
            studies.setdefault(tuple(about[key] for key in keys), set()).add(volume.header.study)
    known = {kind: len(members) for kind, members in studies.items() if kind[0] in match.MODALITIES}
    enough = min(len({study for members in studies.values() for study in members}) / 2, max(known.values(), default=0))
    kept = sorted((kind for kind, count in known.items() if count >= enough), key=str)
    channels = []
    for kind in kept:
        values = dict(zip(keys, kind, strict=True))
        differs = {key: len({other[number] for other in kept}) > 1 for number, key in enumerate(keys)}
        rules = {key: value for key, value in values.items() if value is not None and (key == "modality" or differs[key])}
        words = [str(rules[key]) for key in ("modality", "orientation", "component") if key in rules]
        words += [f"{word}{rules[key]:g}".replace(".", "p") for key, word in (("echo", "echo"), ("b_value", "b")) if key in rules]
        words += ["contrast"] if rules.get("contrast") else []
        channels.append({"name": "_".join(words).lower(), "match": rules})
    return channels


def cases(found: Survey, volumes: list[Volume], channels: list[dict[str, Any]], label_rules: dict[str, Any], key: bytes) -> list[dict[str, Any]]:
    """One row for every study in which a rule of a channel fits a volume, in the order of names.

    A row: case, patient (for the pseudonym's sake as the files name it), images (channel -> token of a series), label (token of a label's
    object), fault: "", or why the case cannot be read. label_rules : the configuration's `dataset.label`.
    """
    by_study: dict[str, list[Volume]] = {}
    for volume in volumes:
        by_study.setdefault(volume.header.study, []).append(volume)
    rows = []
    for members in by_study.values():
        images: dict[str, str] = {}
        faults = []
        chosen: Header | None = None
        stacks = [volume.stack for volume in members]
        if not any(match.fits(stack, channel["match"]) for channel in channels for stack in stacks):
            continue
        name = study_name(members[0].header, key)
        for channel in channels:
            try:
                header = match.choose(stacks, channel["match"], f"channel {channel['name']}").frames[0].header
                images[channel["name"]] = token(header.series, key)
                chosen = chosen or header
            except RejectedCase as error:
                images[channel["name"]] = "none"
                faults.append(survey.without_paths(str(error), stacks))
        label, fault = ("none", "") if chosen is None else label_of(found.labels, chosen, label_rules, key)
        faults += [fault] if fault else []
        rows.append({"case": name, "patient": patient_of(members[0].header), "images": images, "label": label, "fault": "; ".join(faults)})
    return sorted(rows, key=lambda row: row["case"])


def label_of(labels: list[Header], image: Header, rules: dict[str, Any], key: bytes) -> tuple[str, str]:
    """The token of the one label object that refers to an image's series, and "" or why there is none.

    An object that names no series counts when its frame of reference is the image's. rules : `dataset.label`.
    """
    frame = image.frames[0].constant["FrameOfReferenceUID"]
    fitting = []
    for label in labels:
        referenced = label.once["referenced"]
        refers = image.series in referenced if referenced else bool(frame) and label.once["FrameOfReferenceUID"] == frame
        if refers and rules["modality"] in {"any", label.kind} and match.found_in(rules["description"], label.once["SeriesDescription"]):
            fitting.append(label)
    if not fitting:
        return "none", f"label: no {'SEG or RTSTRUCT' if rules['modality'] == 'any' else rules['modality']} refers to the first channel's series"
    if len(fitting) > 1 and rules["prefer"] == "only":
        return "none", f"label: {len(fitting)} objects refer to the first channel's series, expected one; choose by dataset.label"
    fitting.sort(key=lambda label: (str(label.once["SeriesDate"] or label.once["StudyDate"]), str(label.once["SeriesTime"] or ""), label.instance))
    return token(fitting[-1 if rules["prefer"] == "last" else 0].instance, key), ""


def write(out: Path, found: Survey, volumes: list[Volume], rows: list[dict[str, Any]], channels: list[str], key: bytes, descriptions: bool) -> None:
    """Write series.tsv, files.tsv, cases.tsv and the lists of files into a folder for this user alone."""
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    shutil.rmtree(out / "lists", ignore_errors=True)
    (out / "lists").mkdir(mode=0o700)
    header = [*COLUMNS, "description"] if descriptions else list(COLUMNS)
    _table(
        out / "series.tsv",
        header,
        [[*series_row(volume, key), *([volume.stack.attributes["description"]] if descriptions else [])] for volume in volumes],
    )
    _table(out / "files.tsv", ["file", "status", "series", "reason"], file_rows(found, volumes, key))
    _lists(out / "lists", found, key)
    table = []
    for row in rows:
        start = "#" if row["fault"] else ""
        patient = pseudonyms.pseudonym(row["patient"], key)
        cells = [str(out / "lists" / f"{name}{file_lists.SUFFIX}") for name in (*row["images"].values(), row["label"])]
        table.append([f"{start}{row['case']}", patient, *cells, *([row["fault"]] if row["fault"] else [])])
    _table(out / "cases.tsv", ["case", "patient", *channels, "label"], table)


def series_row(volume: Volume, key: bytes) -> list[Any]:
    """The cells of COLUMNS; a missing value is an empty cell."""
    header, about = volume.header, volume.stack.attributes
    paths = {frame.header.path for frame in volume.stack.frames}
    modality = about["modality"] if about["modality"] in match.MODALITIES else "other" if about["modality"] else None
    values = {
        "patient": pseudonyms.pseudonym(patient_of(header), key),
        "study": token(header.study, key)[:8],
        "series": token(header.series, key),
        "volume": volume.number,
        "verdict": volume.verdict,
        "reason": volume.reason,
        "files": len(paths),
        **about,
        "modality": modality,
        "contrast": "yes" if about["contrast"] else "no",
    }
    return ["" if values[column] is None else values[column] for column in COLUMNS]


def file_rows(found: Survey, volumes: list[Volume], key: bytes) -> list[list[str]]:
    """Every file of the tree: of which series it is, or why it is skipped."""
    used = {frame.header.path for volume in volumes for frame in volume.stack.frames}
    rows = []
    for header in found.images:
        status = "image" if header.path in used else "skipped"
        rows.append([str(header.path.relative_to(found.root)), status, token(header.series, key), "" if status == "image" else "localizer or copy"])
    rows += [[str(label.path.relative_to(found.root)), label.kind, token(label.instance, key), ""] for label in found.labels]
    rows += [[str(other.path.relative_to(found.root)), "damaged" if other.damaged else "skipped", "", other.reason] for other in found.others]
    return sorted(rows)


def _lists(folder: Path, found: Survey, key: bytes) -> None:
    """One list of files per series and per label. A damaged file is listed with every series in its folder: it may be a lost slice of it."""
    damaged: dict[Path, list[Path]] = {}
    for other in found.others:
        if other.damaged:
            damaged.setdefault(other.path.parent, []).append(other.path)
    members: dict[str, list[Path]] = {}
    for header in found.images:
        members.setdefault(header.series, []).append(header.path)
    for uid, paths in members.items():
        beside = [path for parent in {path.parent for path in paths} for path in damaged.get(parent, [])]
        _write_list(folder / f"{token(uid, key)}{file_lists.SUFFIX}", found.root, [*paths, *beside])
    for label in found.labels:
        _write_list(folder / f"{token(label.instance, key)}{file_lists.SUFFIX}", found.root, [label.path])


def _write_list(path: Path, root: Path, members: list[Path]) -> None:
    names = sorted(str(member.relative_to(root)) for member in members)
    path.write_text(json.dumps({"root": str(root.absolute()), "files": names}), encoding="utf-8")


def _table(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    with files.atomic(path) as temporary, temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as stream:
        writer = csv.writer(stream, delimiter="\t", lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def summary(found: Survey, volumes: list[Volume], rows: list[dict[str, Any]]) -> list[str]:
    """Lines for the terminal: counts, kinds of volumes with their verdicts, what is skipped and why, and the cases. No names."""
    series = {(volume.header.study, volume.header.series) for volume in volumes}
    lines = [
        f"{len({patient_of(header) for header in found.images})} patients, {len({study for study, _ in series})} studies, {len(series)} series, "
        f"{len(volumes)} volumes; {len(found.images)} image files, {len(found.labels)} SEG or RTSTRUCT, {len(found.others)} other files"
    ]
    nameless = len({header.study for header in found.images if not header.once["PatientID"]})
    if nameless:
        lines.append(f"note: {nameless} studies have no PatientID; each is taken for a patient of its own")
    verdicts = Counter(volume.verdict for volume in volumes)
    counted = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items())) or "none"
    lines.append(f"volumes: {counted} by their headers; pixels are read at ingestion")
    reasons = Counter(survey.kind(volume.reason) for volume in volumes if volume.reason)
    lines += [f"  {count} rejected: {why}" for why, count in reasons.most_common(SHOWN)]
    left = Counter(survey.kind(other.reason) for other in found.others)
    lines += [f"skipped: {count} files: {why}" for why, count in left.most_common(SHOWN)]
    lines.append(f"cases: {len(rows)} studies fit, {sum(bool(row['fault']) for row in rows)} of them with a fault")
    lines += [f"  {count}: {why}" for why, count in Counter(row["fault"] for row in rows if row["fault"]).most_common(SHOWN)]
    return lines
