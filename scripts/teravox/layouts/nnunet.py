"""An nnU-Net v2 raw folder, as nnU-Net's documentation/dataset_format.md describes it."""

import re
from pathlib import Path
from typing import Any

from teravox.errors import UserError
from teravox.layouts.case import Case, check_identifier
from teravox.layouts.folder import first_fault, inside, note, read_description, stands, visible

KIND = "an nnU-Net v2 raw folder"
ENDINGS = (".nii.gz", ".nii", ".nrrd", ".mha")  # of nnU-Net's file endings, those that hold a volume with its affine


def read(config: dict[str, Any]) -> list[Case]:
    """Read the training cases of an nnU-Net v2 raw folder; a case is its own patient. Raises UserError.

    The channels are matched by position. Without a dictionary `dataset` in dataset.json, the cases are those that a file in
    imagesTr or in labelsTr names: what is missing of one is a missing source.
    """
    folder, channels = Path(config["dataset"]["path"]), [channel["name"] for channel in config["channels"]]
    path = folder / "dataset.json"
    description = read_description(folder, path.name, KIND)
    if "modality" in description and "channel_names" not in description:
        raise UserError(
            f"{path}: has 'modality' and no 'channel_names', so it is of nnU-Net v1 or of the decathlon, expected {KIND};"
            " convert it with nnUNetv2_convert_old_nnUNet_dataset, or set layout: msd for a decathlon folder"
        )
    for key, types in {"channel_names": dict, "labels": dict, "numTraining": int, "file_ending": str}.items():
        if type(description.get(key)) is not types:
            raise UserError(f"{path}: '{key}' is missing or of another type than {types.__name__}, expected {KIND}")
    if sorted(description["channel_names"]) != sorted(map(str, range(len(channels)))):
        raise UserError(
            f"{path}: 'channel_names' has {len(description['channel_names'])} entries, expected the numbers 0 to {len(channels) - 1}"
            " ('channels' of the configuration, by position)"
        )
    ending = description["file_ending"]
    if ending not in ENDINGS:
        raise UserError(f"{path}: 'file_ending' is {ending[:20]!r}, expected one of {', '.join(ENDINGS)}; convert the files")
    check_labels(path, description["labels"], config)
    named = "dataset" in description
    cases = _named(folder, description["dataset"], channels, ending) if named else _listed(folder, channels, ending)
    if len(cases) != description["numTraining"]:
        raise UserError(f"{path}: 'numTraining' is {description['numTraining']}, found {len(cases)} cases; complete the copy or correct the number")
    if stands(folder / "imagesTs"):
        unlabelled = {re.sub(r"_[0-9]{4}$", "", name.removesuffix(ending)) for name in _volumes(folder, "imagesTs", ending)}
        note(f"{folder / 'imagesTs'}: {len(unlabelled)} cases without labels are left out")
    return cases


def check_labels(path: Path, labels: dict[str, Any], config: dict[str, Any]) -> None:
    """Raises UserError unless dataset.json and the configuration name the same label values and the same value to ignore.

    labels : name -> value, or -> values of a region; `ignore` names the voxels that nobody judged.
    """
    values: set[int] = set()
    for name, value in labels.items():
        members = value if isinstance(value, list) and name != "ignore" else [value]
        if not members or any(type(member) is not int or member < 0 for member in members):
            raise UserError(f"{path}: 'labels' holds something else than whole numbers from 0 and lists of them; correct it")
        if name != "ignore":
            values.update(members)
    ignored, expected = labels.get("ignore"), config["ignore_value"]
    if ignored != expected:
        raise UserError(
            f"{path}: label 'ignore' is {'not there' if ignored is None else ignored}, expected what 'ignore_value' of the configuration says"
            f" ({'nothing' if expected is None else expected})"
        )
    configured = {label["value"] for label in config["labels"]}
    for value in sorted((values ^ configured) - {0}):
        has, lacks = ("dataset.json", "the configuration") if value in values else ("the configuration", "dataset.json")
        raise UserError(f"{path}: label value {value} stands in 'labels' of {has} and not in those of {lacks}; name the same values in both")


def _volumes(folder: Path, part: str, ending: str) -> list[str]:
    """Names of one subfolder that have the ending, in order; others are left out with a note. Raises UserError."""
    names = visible(inside(folder, part, str(folder)))
    found = [name for name in names if name.endswith(ending)]
    if len(found) < len(names):
        note(f"{folder / part}: {len(names) - len(found)} files that do not end in {ending} are left out")
    return found


def _listed(folder: Path, channels: list[str], ending: str) -> list[Case]:
    """The cases that files name: imagesTr/{case}_{0000}{ending} and labelsTr/{case}{ending}."""
    numbers: dict[str, set[int]] = {}
    for name in _volumes(folder, "imagesTr", ending):
        match = re.fullmatch(r"(.+)_([0-9]{4})", name.removesuffix(ending), re.DOTALL)
        if not match:
            raise UserError(f"{folder / 'imagesTr'}: file {name!r}, expected a name such as case_0000{ending} with the channel's four digits")
        numbers.setdefault(match[1], set()).add(int(match[2]))
    labels = [name.removesuffix(ending) for name in _volumes(folder, "labelsTr", ending)]
    cases = []
    for name in sorted({*numbers, *labels}):
        check_identifier(name, str(folder))
        images = [f"imagesTr/{name}_{number:04d}{ending}" for number in range(len(channels))]
        extra = sorted(number for number in numbers.get(name, ()) if number >= len(channels))
        fault = ""
        if extra:
            fault = f"{folder}/imagesTr/{name}_{extra[0]:04d}{ending}: channel number {extra[0]}, expected 0 to {len(channels) - 1} ('channel_names')"
        cases.append(_case(folder, name, channels, images, f"labelsTr/{name}{ending}", str(folder), fault))
    return cases


def _named(folder: Path, dataset: Any, channels: list[str], ending: str) -> list[Case]:
    """The cases that the dictionary `dataset` of dataset.json names: case -> images, label, relative to the folder."""
    cases = []
    for number, (name, entry) in enumerate(dataset.items() if isinstance(dataset, dict) else [("", dataset)], start=1):
        where = f"{folder / 'dataset.json'} dataset, entry {number}"
        images, label = (entry.get("images"), entry.get("label")) if isinstance(entry, dict) else (None, None)
        if not isinstance(images, list) or not all(isinstance(path, str) and path.endswith(ending) for path in [*images, label]):
            raise UserError(f"{where}: expected a list 'images' and a 'label', paths that end in {ending}")
        if len(images) != len(channels):
            raise UserError(f"{where}: {len(images)} images, expected {len(channels)} ('channel_names')")
        check_identifier(name, where)
        cases.append(_case(folder, name, channels, images, str(label), where))
    return cases


def _case(folder: Path, name: str, channels: list[str], images: list[str], label: str, row: str, fault: str = "") -> Case:
    paths = [inside(folder, path, row) for path in [*images, label]]
    sources = dict(zip(channels, map(str, paths[:-1]), strict=True))
    return Case(name, name, sources, str(paths[-1]), "train", row, fault=fault or first_fault(paths))
