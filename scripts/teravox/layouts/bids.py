"""A BIDS data set: images of sub-*/[ses-*/]anat, labels in a folder of derivatives, both chosen by entities of their names.

Names, entities and suffixes are those of the Brain Imaging Data Structure (bids-specification.readthedocs.io, "Entities"), as
ancpbids knows them. The folder itself is listed here: nothing in it is written, unpickled or followed out of it.
"""

import dataclasses
import difflib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from teravox.errors import UserError
from teravox.layouts.case import Case, check_identifier
from teravox.layouts.folder import first_fault, inside, leads_inside, note, read_description, visible

ENDINGS = (".nii", ".nii.gz")
NAME = re.compile(r"sub-[A-Za-z0-9+]+(_[A-Za-z0-9]+-[A-Za-z0-9+]+)*_[A-Za-z0-9]+(\.nii|\.nii\.gz)")
EXTRA_KEYS = ("suffix", "extension")


@dataclasses.dataclass(frozen=True)
class Volume:
    """path : relative to the data set; case : "sub-01_ses-02"; fields : entities by their short keys, suffix and extension."""

    path: str
    case: str
    fields: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Rule:
    """Which volumes are one channel, or the label. key : of the configuration; fields : the value, "" for absent, of each entity."""

    key: str
    fields: dict[str, str]

    def fits(self, volume: Volume) -> bool:
        return all(volume.fields.get(name, "") == value for name, value in self.fields.items())


def read(config: dict[str, Any]) -> list[Case]:
    """Read the subjects and sessions that have a file for the first channel; the patient is the subject. Raises UserError.

    A channel or label without a file is a missing source; one with several files is a fault that names the entities to add.
    """
    root, derivatives = Path(config["dataset"]["path"]), config["dataset"]["derivatives"]
    description = read_description(root, "dataset_description.json", "a BIDS data set")
    if not isinstance(description.get("BIDSVersion"), str):
        raise UserError(f"{root / 'dataset_description.json'}: no text 'BIDSVersion', expected a BIDS data set")
    rules = {channel["name"]: _rule(channel["match"]["bids"], f"match.bids of channel '{channel['name']}'") for channel in config["channels"]}
    label = _rule(config["dataset"]["label"]["bids"], "dataset.label.bids")
    images = _parsed(root, _anatomical(root))
    masks = _parsed(root, _below(root, derivatives))
    found = {role: _by_case(rule, images, root) for role, rule in rules.items()}
    found["label"] = _by_case(label, masks, root)
    names = sorted(found[next(iter(rules))])
    if not names:
        raise UserError(f"{root}: no file in sub-*/anat or sub-*/ses-*/anat fits {next(iter(rules.values())).key}; correct the entities")
    others = sorted({name for volumes in found.values() for name in volumes} - set(names))
    if others:
        note(f"{root}: {len(others)} subjects or sessions without a file for channel '{next(iter(rules))}' are left out, the first is {others[0]}")
    return [_case(root, derivatives, name, {**rules, "label": label}, {role: found[role].get(name, []) for role in found}) for name in names]


def _rule(texts: list[str], key: str) -> Rule:
    """Read ["suffix=T1w", "acquisition=highres"]; an entity without a value must be absent. Raises UserError."""
    from ancpbids import model_latest  # only here: other layouts need not wait for it

    short = {name: entity.value["name"] for entity in model_latest.EntityEnum for name in (entity.name, entity.value["name"])}
    short |= {name: name for name in EXTRA_KEYS}
    fields: dict[str, str] = {}
    for text in texts:
        entity, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z0-9+.]*", value):
            raise UserError(f"{key}: {text!r}, expected entity=value with letters and digits, such as suffix=T1w")
        if entity not in short:
            close = difflib.get_close_matches(entity, list(short), n=1)
            raise UserError(
                f"{key}: unknown entity {entity!r}, {f'did you mean {close[0]!r}?' if close else 'expected suffix, extension or one of BIDS'}"
            )
        if short[entity] in fields:
            raise UserError(f"{key}: entity {entity!r} stands more than once")
        fields[short[entity]] = str(model_latest.process_entity_value(short[entity], value))
    if not fields.get("suffix"):
        raise UserError(f"{key}: no suffix, expected at least suffix=..., such as suffix=T1w")
    return Rule(key, fields)


def _anatomical(root: Path) -> Iterator[str]:
    """Volumes in sub-*/anat and sub-*/ses-*/anat, relative to the data set, in order; links out of it are refused."""
    for subject in visible(root):
        if subject.startswith("sub-") and inside(root, subject, str(root)).is_dir():
            sessions = [f"{subject}/{name}" for name in visible(root / subject) if name.startswith("ses-")]
            for anatomy in (f"{folder}/anat" for folder in [subject, *sessions]):
                if inside(root, anatomy, str(root)).is_dir():
                    yield from (f"{anatomy}/{name}" for name in visible(root / anatomy) if name.endswith(ENDINGS))


def _below(root: Path, folder: str) -> Iterator[str]:
    """Volumes anywhere below a folder, relative to the data set; each real folder once, so that links make no circle.

    A link to a folder elsewhere is left out with a note: pipelines link to their templates.
    """
    waiting, seen = [inside(root, folder, str(root))], set()
    while waiting:
        path = waiting.pop()
        real = os.path.realpath(path)
        if real in seen:
            continue
        seen.add(real)
        for name in visible(path):
            member = path / name
            if name.endswith(ENDINGS):
                yield member.relative_to(root).as_posix()
            elif not leads_inside(root, member):
                note(f"{member}: a link out of the data set is not followed")
            elif member.is_dir():
                waiting.append(member)


def _parsed(root: Path, paths: Iterable[str]) -> list[Volume]:
    """The entities of each name; names that are none of BIDS, and folders with line breaks, are left out with a note."""
    from ancpbids import model_latest, utils

    volumes, foreign = [], []
    for path in paths:
        name = PurePosixPath(path).name
        parts = utils.parse_bids_name(name) if NAME.fullmatch(name) and path.isprintable() else None
        if parts is None or len(parts["entities"]) != name.count("-"):  # an entity twice
            foreign.append(path)
            continue
        entities = {key: str(model_latest.process_entity_value(key, value)) for key, value in parts["entities"].items()}
        session = f"_ses-{entities['ses']}" if "ses" in entities else ""
        fields = {**entities, "suffix": parts["suffix"], "extension": parts["extension"]}
        volumes.append(Volume(path, f"sub-{entities['sub']}{session}", fields))
    if foreign:
        note(f"{root}: {len(foreign)} volumes are left out, since their names are none of BIDS; the first is {foreign[0]!r}")
    return volumes


def _by_case(rule: Rule, volumes: list[Volume], root: Path) -> dict[str, list[Volume]]:
    """The volumes that fit a rule, by case. Raises UserError when a folder names another subject or session than the file."""
    found: dict[str, list[Volume]] = {}
    for volume in filter(rule.fits, volumes):
        for part in PurePosixPath(volume.path).parts[:-1]:
            if part.startswith(("sub-", "ses-")) and part not in volume.case.split("_"):
                raise UserError(f"{root}/{volume.path}: the name says {volume.case}, the folder {part}; put the file where it belongs")
        found.setdefault(volume.case, []).append(volume)
    return found


def _case(root: Path, derivatives: str, name: str, rules: dict[str, Rule], found: dict[str, list[Volume]]) -> Case:
    check_identifier(name, str(root))
    paths, faults = {}, []
    for role, rule in rules.items():
        if len(found[role]) == 1:
            paths[role] = inside(root, found[role][0].path, str(root))
            continue
        paths[role] = root / _expected(name, rule, f"{derivatives}/**/" if role == "label" else "")
        if found[role]:
            faults.append(f"{root}: {len(found[role])} files of {name} fit {rule.key} and {_difference(found[role])}")
    fault = next(iter(faults), "") or first_fault(paths.values())
    label = str(paths.pop("label"))
    return Case(name, name.split("_")[0], {role: str(path) for role, path in paths.items()}, label, "train", str(root), fault=fault)


def _expected(name: str, rule: Rule, prefix: str) -> str:
    """Where a missing file would be looked for, as a pattern that no file is called."""
    entities = [f"{key}-{value}" for key, value in rule.fields.items() if value and key not in (*EXTRA_KEYS, "sub", "ses")]
    file = "_".join([name, *entities, rule.fields["suffix"]]) + rule.fields.get("extension", ".nii*")
    return f"{prefix}{name.replace('_', '/')}/anat/{file}"


def _difference(volumes: list[Volume]) -> str:
    """What tells several volumes apart, and what to do about it."""
    values = {key: sorted({volume.fields.get(key, "") for volume in volumes}) for volume in volumes for key in volume.fields}
    differing = {key: found for key, found in sorted(values.items()) if len(found) > 1}
    if not differing:
        folders = " and ".join(sorted(str(PurePosixPath(volume.path).parent) for volume in volumes)[:2])
        return f"lie in {folders}; name one of the folders in dataset.derivatives"
    choices = ", ".join(f"{key}={value}" for key, found in differing.items() for value in found)
    return f"differ in {', '.join(differing)}; add one of {choices} (nothing after = for absent)"
