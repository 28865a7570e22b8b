"""Score predictions against references: one case, or the table and summary of all scored cases."""

import argparse
import csv
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from teravox import figures, files, geometry, hashing, metrics, resample, split, store
from teravox.errors import UserError, parse_settings, run_command
from teravox.grids import Grid
from teravox.records import Recorder


def masks(label: np.ndarray, settings: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Every label's and then every region's mask by name."""
    values = {item["name"]: item["value"] for item in settings["labels"]}
    for name, value in values.items():
        yield name, label == value
    for region in settings["regions"]:
        yield region["name"], np.isin(label, [values[name] for name in region["labels"]])


def finite(row: dict[str, Any]) -> dict[str, Any]:
    """NaN as None, for JSON."""
    return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in row.items()}


def evaluate_case(args: argparse.Namespace) -> None:
    recorder = Recorder("evaluate", __file__)
    settings = args.settings
    ingested, predicted = files.read_json(args.ingested / "case.json"), files.read_json(args.prediction)
    case = ingested["case"]
    about = {"case": case, "patient": args.patient, "fold": args.fold, "set": "test" if args.test else "validation"}
    reference, affine = store.load(args.ingested / "label.nii.gz", ingested)
    native, native_affine = store.load(args.prediction.with_name(f"{case}.nii.gz"), predicted)
    prediction, back = geometry.to_canonical(np.asarray(native), native_affine)
    if not geometry.same_grid(reference.shape, affine, prediction.shape, back):
        raise UserError(f"{args.prediction.with_name(f'{case}.nii.gz')}: its grid is not that of the case's label; predict the case again")
    grid_reference, grid = store.load(args.resampled / "label.nii", files.read_json(args.resampled / "case.json"))
    grid_prediction, _ = store.load(args.prediction.with_name(f"{case}.grid.nii.gz"), predicted)

    rows = []
    for space, found, truth, where in (
        ("native", np.asarray(prediction), np.asarray(reference), affine),
        ("grid", np.asarray(grid_prediction), np.asarray(grid_reference), grid),
    ):
        excluded = None if settings["ignore_value"] is None else truth == settings["ignore_value"]
        for (name, mask), (_, expected) in zip(masks(found, settings), masks(truth, settings), strict=True):
            scores = metrics.score(mask, expected, where, settings["evaluate"]["nsd_tolerance_mm"], excluded)
            rows.append({**about, "label": name, "space": space, **finite(scores)})

    channel = settings["evaluate"]["picture_channel"] or next(iter(ingested["channels"]))
    if channel not in ingested["channels"]:
        raise UserError(f"evaluate.picture_channel: '{channel}', expected one of {', '.join(ingested['channels'])}")
    image, own = store.load(args.ingested / f"{channel}.nii.gz", ingested)
    shown = resample.shown_on(np.asarray(image), own, Grid(reference.shape, affine))
    picture = figures.case_picture(shown, np.asarray(reference), prediction, affine, settings["labels"], f"{case}, {channel}")
    with files.atomic(args.figure) as temporary:
        temporary.write_bytes(picture)
    recorder.write(
        args.out,
        {"case": case, "rows": rows},
        artefacts={
            args.out.name: hashing.text_digest(files.canonical_json(rows)),
            os.path.relpath(args.figure, args.out.parent): hashing.file_digest(args.figure),
        },
        inputs={
            f"predict/{case}.nii.gz": predicted["provenance"]["artefacts"][f"{case}.nii.gz"],
            f"ingest/{case}/label.nii.gz": ingested["provenance"]["artefacts"]["label.nii.gz"],
        },
        settings=settings,
    )


def evaluate_all(args: argparse.Namespace) -> None:
    recorder = Recorder("evaluate", __file__)
    settings = args.settings
    names = split.scored_cases(files.read_json(args.split), args.folds)
    documents = {name: files.read_json(args.cases / f"{name}.json") for name in names}
    rows = [row for document in documents.values() for row in document["rows"]]
    table = args.out.with_name("metrics.csv")
    with files.atomic(table) as temporary, temporary.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, metrics.COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({key: f"{value:.6f}" if isinstance(value, float) else value for key, value in row.items()})
    numeric = [{key: math.nan if value is None and key in metrics.METRICS else value for key, value in row.items()} for row in rows]
    labels = [label["name"] for label in settings["labels"]]
    summary = metrics.summarise([row for row in numeric if row["label"] in labels])
    summary += [entry for entry in metrics.summarise([row for row in numeric if row["label"] not in labels]) if entry["over"] == "cases"]
    recorder.write(
        args.out,
        {"summary": summary, "worst_first": metrics.worst_first(numeric), "empty_rule": metrics.EMPTY_RULE},
        artefacts={table.name: hashing.text_digest(table.read_text()), args.out.name: hashing.text_digest(files.canonical_json(summary))},
        inputs={f"evaluation/cases/{name}.json": document["provenance"]["artefacts"][f"{name}.json"] for name, document in documents.items()},
        settings=settings,
    )
    for entry in summary:
        if entry["space"] == "native":
            mean, n = entry["dice"]["mean"], entry["dice"]["n"]
            print(f"{entry['set']} {entry['label']}: mean Dice {'undefined' if mean is None else f'{mean:.4f}'} over {n} {entry['over']}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="case|all")
    one = commands.add_parser("case", help="score one case and draw it")
    one.set_defaults(function=evaluate_case)
    one.add_argument("--prediction", type=Path, required=True, help="the prediction's JSON document")
    one.add_argument("--ingested", type=Path, required=True, help="folder of the ingested case")
    one.add_argument("--resampled", type=Path, required=True, help="folder of the resampled case")
    one.add_argument("--patient", required=True, help="pseudonym of the patient")
    side = one.add_mutually_exclusive_group(required=True)
    side.add_argument("--fold", type=int, help="fold whose model predicted this validation case")
    side.add_argument("--test", action="store_true", help="the case belongs to the test set")
    one.add_argument("--figure", type=Path, required=True, help="picture of the case, PNG")
    every = commands.add_parser("all", help="metrics.csv and summary.json of all scored cases")
    every.set_defaults(function=evaluate_all)
    every.add_argument("--cases", type=Path, required=True, help="folder of the cases' scores")
    every.add_argument("--folds", type=int, nargs="+", required=True, help="the trained folds")
    every.add_argument("--split", type=Path, required=True, help="split.json")
    for command in (one, every):
        command.add_argument(
            "--settings", type=parse_settings, required=True, help="JSON: labels, ignore_value, regions and evaluate of the configuration"
        )
        command.add_argument("--out", type=Path, required=True, help="JSON document to write")
    raise SystemExit(run_command(lambda args: args.function(args), parser))
