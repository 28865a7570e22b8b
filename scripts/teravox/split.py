"""Folds and test set by patient, and the check that nothing leaks between them."""

from typing import Any

import numpy as np

from teravox import hashing
from teravox.errors import UserError


def order(patients: list[str], seed: int, purpose: str) -> list[str]:
    """A seeded order of patients that depends on nothing but each identifier: adding one patient moves no other pair."""
    return sorted(patients, key=lambda patient: (hashing.text_digest(f"{purpose} {seed} {patient}"), patient))


def split(cases: list[dict[str, Any]], folds: int, seed: int, test_fraction: float) -> dict[str, dict[str, Any]]:
    """Assign every accepted case to a fold or to the test set, by patient.

    cases : documents of ingestion (case, patient, set, label.voxels), by whose `patient` they are ordered; test cases by their
    `set`, or a fraction of patients.
    Patients are dealt to folds one after another, those with the same labels present together, so that each fold gets its
    share of a rare label. Returns case -> {patient, set, fold (None for test)}, sorted by case. Raises UserError.
    """
    present: dict[str, set[str]] = {}
    for case in cases:
        present.setdefault(case["patient"], set()).update(name for name, count in case["label"]["voxels"].items() if count)
    test = {case["patient"] for case in cases if case["set"] == "test"}
    if test_fraction:
        count = max(1, round(test_fraction * len(present)))
        test = set(order(list(present), seed, "test")[:count])
    training = [patient for patient in present if patient not in test]
    if len(training) < folds:
        raise UserError(f"split: {len(training)} patients to train on, expected at least {folds} (split.folds); lower it or add patients")
    ordered = order(training, seed, "fold")
    ordered.sort(key=lambda patient: sorted(present[patient]))  # stable: strata by labels present, seeded order within
    fold_of = {patient: position % folds for position, patient in enumerate(ordered)}
    return {
        case["case"]: {
            "patient": case["patient"],
            "set": "test" if case["patient"] in test else "train",
            "fold": fold_of.get(case["patient"]),
        }
        for case in sorted(cases, key=lambda case: case["case"])
    }


def check_pseudonyms(cases: list[dict[str, Any]], identifiers: dict[str, str]) -> None:
    """Raises UserError unless the cases' pseudonyms are of one key, and tell apart the same patients as the case table does.

    cases : documents of ingestion (case, patient, key); identifiers : case -> the patient's identifier in the case table.
    """
    pairs = {(case["patient"], identifiers[case["case"]]) for case in cases}
    counts = {len(pairs), *(len(set(side)) for side in zip(*pairs, strict=True))}
    if len({case["key"] for case in cases}) > 1 or len(counts) > 1:
        raise UserError("split: the ingested cases hold pseudonyms of several keys or case tables; run snakemake --cores all --forcerun ingest_case")


def check_leaks(cases: list[dict[str, Any]], assigned: dict[str, dict[str, Any]]) -> None:
    """Raises UserError when a patient, or a voxel-identical image, stands in two folds or in a fold and the test set."""
    owner: dict[tuple[str, str], str] = {}
    for case in sorted(cases, key=lambda case: case["case"]):
        name = case["case"]
        traces = [("patient", case["patient"])] + [
            ("image", channel["voxels"])
            for channel in case["channels"].values()
            if channel["min"] < channel["max"]  # a blank channel says nothing about whose it is
        ]
        for trace in traces:
            other = owner.setdefault(trace, name)
            if assigned[other]["fold"] != assigned[name]["fold"]:
                what = "belong to one patient" if trace[0] == "patient" else "have a voxel-identical image"
                raise UserError(
                    f"split: cases '{other}' and '{name}' {what} but stand on two sides; give them one patient in the case table, or remove one"
                )


def median_spacing(cases: list[dict[str, Any]], assigned: dict[str, dict[str, Any]]) -> list[float]:
    """Along each axis (x, y, z) the median voxel edge of the cases outside the test set, mm: from their headers, of their first channel.

    cases : documents of the accepted cases; assigned : as of `split`.
    """
    return np.median([case["spacing_mm"] for case in cases if assigned[case["case"]]["set"] != "test"], axis=0).tolist()


def training_cases(split_document: dict[str, Any], fold: int) -> list[str]:
    """Cases that fold `fold` trains on: neither its own nor the test set's."""
    return [name for name, case in split_document["cases"].items() if case["set"] == "train" and case["fold"] != fold]


def scored_cases(split_document: dict[str, Any], folds: list[int]) -> list[str]:
    """Cases that are predicted: those of the trained folds, by the model that has not seen them, and the test set."""
    return [name for name, case in split_document["cases"].items() if case["set"] == "test" or case["fold"] in folds]
