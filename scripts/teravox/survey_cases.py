"""The cases that rules make of what a survey found, and rules to begin with."""

from collections import Counter
from pathlib import Path
from typing import Any

from teravox import pseudonyms, survey
from teravox.dicom import match, sources
from teravox.dicom.headers import Header
from teravox.dicom.stacks import Stack
from teravox.errors import RejectedCase
from teravox.survey import Survey, Volume

TOKEN_DIGITS = 12  # of a series' keyed hash, in names of lists and in tables
STUDY_DIGITS = 8  # of a study's keyed hash, which tells the cases of one patient apart
NONE = "none"  # instead of a token
CODED = ("modality", "contrast", "orientation", "echo", "b_value", "component")  # rules that need no regular expression


def token(text: str, key: bytes) -> str:
    return pseudonyms.uid_hash(text, key)[:TOKEN_DIGITS]


def series_token(header: Header, key: bytes) -> str:
    return token(" ".join(survey.key_of(header)), key)


def study_token(header: Header, key: bytes) -> str:
    return token(header.study, key)[:STUDY_DIGITS]


def label_token(header: Header, root: Path, key: bytes) -> str:
    """By the file's place too: two objects of one SOPInstanceUID are two."""
    return token(f"{header.instance} {header.path.relative_to(root)}", key)


def by_study(volumes: list[Volume]) -> dict[tuple[str, str], list[Volume]]:
    """The volumes of each patient's study, in the order of the files."""
    groups: dict[tuple[str, str], list[Volume]] = {}
    for volume in volumes:
        groups.setdefault((volume.patient, volume.header.study), []).append(volume)
    return groups


def candidates(volumes: list[Volume]) -> list[Stack]:
    """What rules choose from among the volumes of a study: all but localizers and pictures, as in a folder of files."""
    kept = {id(frame) for frame in sources.without_scouts(list({id(volume.header): volume.header for volume in volumes}.values()))[0]}
    return [volume.stack for volume in volumes if id(volume.stack.frames[0]) in kept]


def proposed_channels(volumes: list[Volume]) -> list[dict[str, Any]]:
    """Channels with rules that tell apart what at least half of the studies have, from coded attributes alone; for a survey without rules.

    Series that differ only in texts, or in their number of slices, fall together.
    """
    studies: dict[tuple[Any, ...], set[tuple[str, str]]] = {}
    for study, found in by_study(volumes).items():
        for stack in candidates(found):
            if (stack.attributes["modality"] in match.MODALITIES and stack.attributes["slices"] > 1) or stack.frames[0].header.mosaic:
                studies.setdefault(tuple(stack.attributes[key] for key in CODED), set()).add(study)
    enough = min(len(set().union(*studies.values())) / 2, max(map(len, studies.values()), default=0))
    kept = sorted((kind for kind, found in studies.items() if len(found) >= enough), key=str)
    channels = []
    for kind in kept:
        values = dict(zip(CODED, kind, strict=True))
        differs = {key: len({other[number] for other in kept}) > 1 for number, key in enumerate(CODED)}
        rules = {key: value for key, value in values.items() if value is not None and (key == "modality" or differs[key])}
        words = [str(rules[key]) for key in ("modality", "orientation", "component") if key in rules]
        words += [f"{word}{rules[key]:g}".replace(".", "p") for key, word in (("echo", "echo"), ("b_value", "b")) if key in rules]
        words += ["contrast"] if rules.get("contrast") else []
        normalise = "cohort" if rules.get("modality") == "CT" else "zscore"
        channels.append({"name": "_".join(words).lower(), "normalise": normalise, "match": rules})
    return channels


def fitting(volumes: list[Volume], rules: dict[str, Any]) -> Counter[str]:
    """How many studies have `one` volume that fits a channel's rules, and how many `several`."""
    counts = [sum(match.fits(stack, rules) for stack in candidates(found)) for found in by_study(volumes).values()]
    return Counter("one" if count == 1 else "several" for count in counts if count)


def cases(found: Survey, volumes: list[Volume], channels: list[dict[str, Any]], label_rules: dict[str, Any], key: bytes) -> list[dict[str, Any]]:
    """One row for every study of a patient in which the rules of a channel fit a volume, in the order of names.

    A row: case; patient, as the files name it; images (channel -> token of a series); label (token of a label's object); faults: why the case
    cannot be read. label_rules : the configuration's `dataset.label`.
    """
    members = survey.members(found)
    labels: dict[str, list[Header]] = {}
    for label in found.labels:
        for uid in label.once["referenced"] or (str(label.once["FrameOfReferenceUID"] or ""),):
            if uid:  # an empty one refers to nothing
                labels.setdefault(uid, []).append(label)
    rows = []
    for (patient, _), study in by_study(volumes).items():
        stacks = candidates(study)
        if not any(match.fits(stack, channel["match"]) for channel in channels for stack in stacks):
            continue
        verdicts = {id(volume.stack): volume for volume in study}
        images: dict[str, str] = {}
        faults = []
        first: Volume | None = None
        for channel in channels:
            role = f"channel {channel['name']}"
            try:
                volume = verdicts[id(match.choose(stacks, channel["match"], role))]
                images[channel["name"]] = series_token(volume.header, key)
                first = first or volume
                if volume.reason:
                    faults.append(f"{role}: {volume.reason}")
            except RejectedCase as error:
                images[channel["name"]] = NONE
                faults.append(survey.without_paths(str(error), [path for uids in {volume.key: 0 for volume in study} for path in members[uids]]))
        chosen = NONE
        if first is not None:
            try:
                chosen = label_token(label_of(labels, first, label_rules), found.root, key)
            except RejectedCase as error:
                faults.append(str(error))
        name = f"{pseudonyms.pseudonym(patient, key)}_{study_token(study[0].header, key)}"
        rows.append({"case": name, "patient": patient, "images": images, "label": chosen, "faults": faults})
    return sorted(rows, key=lambda row: row["case"])


def label_of(labels: dict[str, list[Header]], image: Volume, rules: dict[str, Any]) -> Header:
    """The one label object that refers to an image's series. Raises RejectedCase.

    An object that names no series counts when its frame of reference is the image's. labels : by the series that they refer to, or by their
    frame of reference; rules : `dataset.label`.
    """
    frame = str(image.header.frames[0].constant["FrameOfReferenceUID"] or "")
    found = labels.get(image.header.series, []) + [label for label in labels.get(frame, []) if frame and not label.once["referenced"]]
    fitting = [
        label for label in found if rules["modality"] in {"any", label.kind} and match.found_in(rules["description"], label.once["SeriesDescription"])
    ]
    kinds = "SEG or RTSTRUCT" if rules["modality"] == "any" else rules["modality"]
    if not fitting:
        also = " and dataset.label.description" if rules["description"] else ""
        raise RejectedCase(f"label: no {kinds}{also} fits the first channel's series, expected one that refers to it")
    own = [label for label in fitting if survey.patient_id(label) in {"", image.patient}]
    if not own:
        raise RejectedCase(f"label: the {kinds} that refers to the first channel's series has another PatientID, expected that of the series")
    if len(own) > 1 and rules["prefer"] == "only":
        raise RejectedCase(f"label: {len(own)} objects refer to the first channel's series, expected one; choose by dataset.label")
    times = [(str(label.once["SeriesDate"] or label.once["StudyDate"]), str(label.once["SeriesTime"] or label.once["StudyTime"])) for label in own]
    wanted = max(times) if rules["prefer"] == "last" else min(times)
    if times.count(wanted) > 1:
        raise RejectedCase(f"label: {times.count(wanted)} objects of one date and time refer to the first channel's series, expected one")
    return own[times.index(wanted)]


def lists(found: Survey, key: bytes) -> dict[str, list[Path]]:
    """The files of every series and label, by token. A damaged file is listed with each series that it may be a slice of."""
    series = {token(" ".join(uids), key): paths for uids, paths in survey.members(found).items()}
    return series | {label_token(label, found.root, key): [label.path] for label in found.labels}
