"""The cases of a run: from a case table, or from a Medical Segmentation Decathlon folder."""

import csv
import dataclasses
import re
from pathlib import Path
from typing import Any

from teravox import config as configuration
from teravox import files
from teravox.errors import UserError

IDENTIFIER = r"[A-Za-z0-9_-]+"  # as in cases.schema.yaml


@dataclasses.dataclass(frozen=True)
class Case:
    """One row: identifiers, one source path per channel (in channel order), the label's path, and `train` or `test`.

    stacked : the channels are the volumes, in order, of one 4D file; row : where the case was named, for messages
    ("config/cases.tsv row 3").
    """

    case: str
    patient: str
    images: dict[str, str]
    label: str
    set: str
    row: str
    stacked: bool = False

    @property
    def sources(self) -> dict[str, str]:
        """Every source path by role: the channels' names, then `label`."""
        return {**self.images, "label": self.label}


def read_cases(config: dict[str, Any]) -> list[Case]:
    """The cases that a completed configuration names. Raises UserError with one line: file, row and value.

    Whether the sources exist is not looked at here: see `missing_sources`.
    """
    reader = {"table": read_table, "msd": read_msd}[config["dataset"]["layout"]]
    cases = reader(Path(config["dataset"]["path"]), [channel["name"] for channel in config["channels"]])
    if not cases:
        raise UserError(f"{config['dataset']['path']}: found no case, expected at least one")
    seen: dict[str, Case] = {}
    patients: dict[str, Case] = {}
    for case in cases:
        if case.case.lower() in seen:
            raise UserError(f"{case.row}: case '{case.case}' stands in {seen[case.case.lower()].row} already; give each case a name of its own")
        seen[case.case.lower()] = case
        other = patients.setdefault(case.patient, case)
        if other.set != case.set:
            raise UserError(
                f"{case.row}: the patient is in set '{case.set}' here and in '{other.set}' in {other.row}; keep a patient's cases in one set"
            )
    if config["split"]["test_fraction"] and any(case.set == "test" for case in cases):
        raise UserError(f"{config['dataset']['path']}: column 'set' names test cases, and split.test_fraction is set too; use one of the two")
    return cases


def read_table(path: Path, channels: list[str]) -> list[Case]:
    """Read a tab-separated case table: columns case, patient, the channels, label and, if wanted, set. Raises UserError."""
    try:
        reader = csv.reader(path.read_text(encoding="utf-8-sig").splitlines(), delimiter="\t", strict=True)
        rows = [(reader.line_num, cells) for cells in reader]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not readable as a UTF-8 text ({error}); expected a tab-separated case table") from None
    except csv.Error as error:
        raise UserError(f"{path} row {reader.line_num}: {error}; a quotation mark that opens a cell must also close it") from None
    if not rows:
        raise UserError(f"{path}: empty, expected a header line with case, patient, {', '.join(channels)}, label")
    header = [name.strip() for name in rows[0][1]]
    expected = ["case", "patient", *channels, "label"]
    for name in expected:
        if name not in header:
            known = set(expected) & set(header)  # without a header line, row 1 is a patient's: not to be quoted
            found = ", ".join(header) if known else "no column's name"
            raise UserError(f"{path} row 1: column '{name}' is missing, found {found}; columns are separated by tabs")
    for name in header:
        if name not in [*expected, "set"]:
            raise UserError(f"{path} row 1: unknown column '{name}', expected {', '.join([*expected, 'set'])}")
        if header.count(name) > 1:
            raise UserError(f"{path} row 1: column '{name}' stands more than once")
    cases = []
    for number, cells in rows[1:]:
        if not any(cell.strip() for cell in cells) or cells[0].startswith("#"):
            continue
        row = f"{path} row {number}"
        if len(cells) != len(header):
            raise UserError(f"{row}: found {len(cells)} cells, expected {len(header)} ({', '.join(header)})")
        values = {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
        if not values.get("set"):
            values["set"] = "train"
        if not re.fullmatch(IDENTIFIER, values["patient"]):  # before the schema's own message, which quotes what it found
            raise UserError(f"{row}: 'patient' is empty or has other characters than letters, digits, _ and -")
        configuration.validate(values, "cases", row)
        cases.append(Case(values["case"], values["patient"], {name: values[name] for name in channels}, values["label"], values["set"], row))
    return cases


def read_msd(folder: Path, channels: list[str]) -> list[Case]:
    """Read the training cases of a Medical Segmentation Decathlon folder; a case is its own patient. Raises UserError.

    dataset.json names images and labels relative to the folder; several modalities lie in one 4D file, whose volumes are the
    channels in their order. Entries of `test` have no label and are left out.
    """
    path = folder / "dataset.json"
    description = files.read_json(path) if path.exists() else None
    if description is None:
        raise UserError(f"{path}: missing; expected a Medical Segmentation Decathlon folder (link or unpack the download there)")
    try:
        modalities, training = len(description["modality"]), description["training"]
        pairs = [(str(entry["image"]), str(entry["label"])) for entry in training]
    except (KeyError, TypeError) as error:
        raise UserError(f"{path}: no list 'training' of image and label, or no 'modality' ({error}); expected the decathlon's format") from None
    if modalities != len(channels):
        raise UserError(f"{path}: names {modalities} modalities, expected {len(channels)} ('channels' of the configuration)")
    cases = []
    for number, (image, label) in enumerate(pairs):
        name = re.sub(r"\.nii(\.gz)?$", "", Path(image).name)
        row = f"{path} training[{number}]"
        for relative in (image, label):
            if Path(relative).is_absolute() or ".." in Path(relative).parts:
                raise UserError(f"{row}: path '{relative}' leads out of the folder")
        if not re.fullmatch(IDENTIFIER, name):
            raise UserError(f"{row}: file name '{name}' has other characters than letters, digits, _ and -; rename the file")
        cases.append(Case(name, name, {channel: str(folder / image) for channel in channels}, str(folder / label), "train", row, len(channels) > 1))
    return cases


def missing_sources(cases: list[Case], made: str | None = None) -> list[str]:
    """One line for every source path that does not exist, those below folder `made` (written by the workflow) left out."""
    return [
        f"{case.row}: {role} of case '{case.case}' is missing: {path}"
        for case in cases
        for role, path in case.sources.items()
        if not (made and Path(path).is_relative_to(made)) and not Path(path).exists()
    ]
