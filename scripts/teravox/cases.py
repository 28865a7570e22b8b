"""The cases of a run, whatever the layout of its data set."""

from pathlib import Path
from typing import Any

from teravox.errors import UserError
from teravox.layouts import bids, dicom, msd, nnunet, table
from teravox.layouts.case import Case
from teravox.layouts.folder import stands

__all__ = ["LAYOUTS", "Case", "missing_sources", "read_cases"]

LAYOUTS = {"table": table.read, "msd": msd.read, "nnunet": nnunet.read, "bids": bids.read, "dicom": dicom.read}


def read_cases(config: dict[str, Any]) -> list[Case]:
    """The cases that a completed configuration names. Raises UserError with one line: file, row and value.

    Whether the sources exist is not looked at here: see `missing_sources`.
    """
    try:
        cases = LAYOUTS[config["dataset"]["layout"]](config)
    except OSError as error:
        raise UserError(
            f"{error.filename}: not readable ({error.strerror or type(error).__name__}), expected a data set this user may read"
        ) from None
    if not cases:
        raise UserError(f"{config['dataset']['path']}: found no case, expected at least one")
    seen: dict[str, Case] = {}
    patients: dict[str, Case] = {}
    for case in cases:
        twin = seen.setdefault(case.case.lower(), case)
        if twin is not case:
            raise UserError(f"{case.row}: case '{case.case}' stands in {twin.row} already as '{twin.case}'; give each case a name of its own")
        other = patients.setdefault(case.patient, case)
        if other.set != case.set:
            raise UserError(
                f"{case.row}: the patient is in set '{case.set}' here and in '{other.set}' in {other.row}; keep a patient's cases in one set"
            )
    if config["split"]["test_fraction"] and any(case.set == "test" for case in cases):
        raise UserError(f"{config['dataset']['path']}: column 'set' names test cases, and split.test_fraction is set too; use one of the two")
    return cases


def missing_sources(cases: list[Case], made: str | None = None) -> list[str]:
    """One line for every case whose layout shows a fault, and for every source path of the others that does not exist.

    made : folder that the workflow writes; what lies below it is left out.
    """
    problems = []
    for case in cases:
        if case.fault:
            problems.append(case.fault)
            continue
        for role, path in case.sources.items():
            if not (made and Path(path).is_relative_to(made)) and not stands(Path(path)):
                problems.append(f"{case.row}: {role} of case '{case.case}' is missing: {path}")
    return problems
