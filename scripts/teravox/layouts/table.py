"""A case table: tab-separated, one row per case."""

import csv
import re
from pathlib import Path
from typing import Any

from teravox import config as configuration
from teravox.errors import UserError
from teravox.layouts.case import Case

IDENTIFIER = r"[A-Za-z0-9_-]+"  # as in cases.schema.yaml


def read(config: dict[str, Any]) -> list[Case]:
    """The cases of the table that a completed configuration names. Raises UserError."""
    return read_table(Path(config["dataset"]["path"]), [channel["name"] for channel in config["channels"]])


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
