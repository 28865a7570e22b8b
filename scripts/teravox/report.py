"""The report: what the documents of a run say, as one page that opens offline."""

import csv
import datetime
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import teravox
from teravox import ceiling_table, figures, files, hashing, layout, pages, records, split
from teravox.errors import UserError

BOXPLOTS = ("dice", "nsd", "hd95")


def number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def require_recorded(path: Path, found: str, place: Path, document: dict[str, Any], name: str) -> None:
    """Raises UserError when the content hash of an artefact is not the one that its document, at `place`, records."""
    if found != document["provenance"]["artefacts"][name]:
        raise UserError(f"{path}: is not what {place} records; delete {place} and run snakemake --cores all to make both again")


def score_groups(summary: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One table per set and space."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for entry in summary:
        name = "mean over labels" if entry["over"] == "labels" else entry["label"]
        dice = entry["dice"]
        cells = [number(dice[key]) for key in ("mean", "sd", "median", "minimum")]
        cells += [number(entry[metric]["mean"], 2 if metric != "iou" and metric != "nsd" else 3) for metric in ("iou", "hd95", "assd", "nsd")]
        cells += [number(entry[metric]["mean"], 2) for metric in ("volume_ml", "reference_volume_ml")]
        rows = groups.setdefault((entry["set"], entry["space"]), [])
        rows.append({"label": name, "rows": entry["rows"] if entry["over"] == "cases" else "", "cells": [*cells, str(dice["excluded"])]})
    return [{"set": where[0], "space": where[1], "rows": rows} for where, rows in sorted(groups.items(), key=lambda item: item[0][1] != "native")]


def empty_counts(summary: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kinds = ("both", "reference", "prediction")
    return [
        {"set": entry["set"], "space": entry["space"], "label": entry["label"], **{kind: entry["empty"][kind] for kind in kinds}}
        for entry in summary
        if entry["over"] == "cases" and any(entry["empty"][kind] for kind in kinds)
    ]


def span(values: list[float]) -> str:
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"


def cohort(assigned: dict[str, Any], ingested: list[dict[str, Any]], resampled: list[dict[str, Any]]) -> dict[str, Any]:
    cases = assigned["cases"]
    sides: dict[str, list[str]] = {}
    for case in cases.values():
        sides.setdefault("test" if case["set"] == "test" else f"fold {case['fold']}", []).append(case["patient"])
    accepted = [case for case in ingested if case["verdict"] != "rejected"]
    notes = [
        {"case": case["case"], "text": f"{role}: {line}"}
        for case in accepted
        for role, found in [*case["channels"].items(), ("label", case["label"])]
        for line in [*(f"corrected: {correction}" for correction in found["corrections"]), *found["notes"]]
    ]
    notes += [{"case": case["case"], "text": line} for case in resampled for line in case["warnings"]]
    formats = Counter(f"{channel['format']} image" for case in accepted for channel in case["channels"].values())
    formats.update(f"{case['label']['format']} label" for case in accepted)
    return {
        "accepted": len(cases),
        "patients": len({case["patient"] for case in cases.values()}),
        "rows": [{"name": name, "cases": len(sides[name]), "patients": len(set(sides[name]))} for name in sorted(sides)],
        "shapes": " × ".join(span([case["grid"]["shape"][axis] for case in accepted]) for axis in range(3)) + " voxels",
        "spacing": " × ".join(span([case["spacing_mm"][axis] for case in accepted]) for axis in range(3)) + " mm",
        "formats": ", ".join(f"{count} {name}" for name, count in sorted(formats.items())),
        "excluded": assigned["excluded"],
        "notes": notes,
    }


def ceiling_rows(resampled: list[dict[str, Any]], names: list[str]) -> list[dict[str, Any]]:
    """Per label what a segmentation that is perfect on the grid scores, see teravox.ceiling."""
    rows = ceiling_table.summary([[{"spacing": 0, "labels": case["ceiling"]}] for case in resampled], names)
    for row in rows:
        row["cells"] = [number(row[name], 4) for name in ("dice_mean", "dice_min", "nsd_mean", "nsd_min")]
        row["volume"] = "–" if row["volume_change_worst"] is None else f"{100 * row['volume_change_worst']:+.1f} %"
    return rows


def training_rows(models: list[dict[str, Any]], runs: list[dict[str, Any]], plan: dict[str, Any]) -> list[dict[str, Any]]:
    planned = {row["fold"]: row for row in plan["trainings"]}
    rows = []
    for model, run in zip(models, runs, strict=True):
        pinning = run["pinning"]
        rows.append(
            {
                "fold": model["fold"],
                "cases": len(model["training_cases"]),
                "parameters": f"{model['parameters']:,}",
                "shape": " × ".join(map(str, planned[model["fold"]]["padded"])),
                "predicted": f"{run['predicted_peak_bytes'] / 1e6:.0f}",
                "measured": f"{run['peak_rss_bytes'] / 1e6:.0f}",
                "step": f"{run['seconds_per_step']:.3f}",
                "threads": run["threads"] if run["threads"] <= run["cores_allowed"] else f"{run['threads']} on {run['cores_allowed']} cores",
                "onednn": "on" if run["onednn"] else "OFF",
                "placement": f"numactl {' '.join(pinning['arguments'])}" if pinning["pinned"] else f"NOT PINNED: {pinning['reason']}",
            }
        )
    return rows


def cost_rows(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    stages: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        stages.setdefault(run["stage"], []).append(run)
    return [
        {
            "stage": stage,
            "jobs": len(members),
            "seconds": f"{sum(run['seconds'] for run in members):.1f}",
            "longest": f"{max(run['seconds'] for run in members):.1f}",
            "peak": f"{max(run['peak_rss_bytes'] for run in members) / 1e6:.0f}",
        }
        for stage, members in stages.items()
    ]


def render(root: Path, settings: dict[str, Any]) -> str:
    """The page as HTML, from the results folder of a run. settings : the part of the configuration that numbers depend on."""
    folds = settings["train"]["folds"]
    paths = list(layout.documents(root, folds, settings["shard"]["count"]))
    documents = {path.relative_to(root).as_posix(): files.read_json(path) for path in paths}
    runs = {path.relative_to(root).as_posix(): files.read_json(records.run_path(path)) for path in paths}
    assigned, summary = documents["split.json"], documents["evaluation/summary.json"]
    scored = split.scored_cases(assigned, folds)
    rows = [row for case in scored for row in documents[f"evaluation/cases/{case}.json"]["rows"]]
    labels = [label["name"] for label in settings["labels"]] + [region["name"] for region in settings["regions"]]
    numeric = [{key: np.nan if value is None and key not in ("fold",) else value for key, value in row.items()} for row in rows]
    models = [f"train/fold{fold}/model.json" for fold in folds]
    trainings = training_rows([documents[name] for name in models], [runs[name] for name in models], documents["plan.json"])

    histories = {}
    for fold in folds:
        path = root / "train" / f"fold{fold}" / "history.csv"
        text = path.read_text(encoding="utf-8")
        require_recorded(path, hashing.text_digest(text), path.with_name("model.json"), documents[f"train/fold{fold}/model.json"], path.name)
        histories[f"fold {fold}"] = list(csv.DictReader(text.splitlines()))

    def picture(case: str) -> dict[str, Any]:
        own = [row for row in rows if row["case"] == case and row["space"] == "native"]
        text = ", ".join(f"{row['label']} Dice {number(row['dice'])}, HD95 {number(row['hd95'], 1)} mm" for row in own)
        path = root / "evaluation" / "figures" / f"{case}.png"
        scores = f"evaluation/cases/{case}.json"
        require_recorded(path, hashing.file_digest(path), root / scores, documents[scores], f"../figures/{case}.png")
        data = path.read_bytes()
        return {"name": case, "set": own[0]["set"], "fold": own[0]["fold"], "text": text, "data": pages.encoded(data)}

    tiles = [
        {"name": f"mean Dice, {entry['label'] if entry['over'] == 'cases' else 'all labels'}, {entry['set']}", "value": number(entry["dice"]["mean"])}
        for entry in summary["summary"]
        if entry["space"] == "native" and (entry["over"] == "labels" or entry["label"] in labels[len(settings["labels"]) :])
    ]
    versions = {name: version for document in documents.values() for name, version in document["provenance"]["versions"].items()}
    machine, training = runs[models[0]]["machine"], runs[models[0]]
    facts = [
        ("commit", training["commit"]),
        ("processor", machine["cpu"]),
        ("vector features", " ".join(machine["cpu_features"])),
        ("cores allowed", machine["cores_allowed"]),
        ("Python", machine["python"]),
        ("kernel, C library", f"{machine['kernel']}, {machine['libc']}"),
        *sorted((name, version) for name, version in versions.items() if name != "python"),
    ]
    warnings = [f"{len(assigned['excluded'])} case(s) excluded, listed under Cohort."] if assigned["excluded"] else []
    warnings += [f"Training of fold {row['fold']} ran unpinned: {row['placement']}" for row in trainings if row["placement"].startswith("NOT")]
    unchecked = [name for name in models if runs[name]["shard_check"] == "size"]
    warnings += [f"Training of fold {documents[name]['fold']} compared no checksum of what it read (shard.check: size)." for name in unchecked]
    hashed = ["split.json", "plan.json", *models, "evaluation/summary.json"]
    return pages.render(
        "report.html.j2",
        made=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=teravox.__version__,
        tiles=tiles,
        warnings=warnings,
        scores=score_groups(summary["summary"]),
        empty_rule=summary["empty_rule"],
        empty_counts=empty_counts(summary["summary"]),
        tolerance=settings["evaluate"]["nsd_tolerance_mm"],
        ceiling_tolerance=settings["resample"]["ceiling_tolerance_mm"],
        boxplots=[{"name": metric, "data": pages.encoded(figures.boxplots(numeric, metric, labels))} for metric in BOXPLOTS],
        pictures=[picture(case) for case in summary["worst_first"]],
        cohort=cohort(
            assigned,
            [document for name, document in documents.items() if name.startswith("ingest/")],
            [document for name, document in documents.items() if name.startswith("resample/")],
        ),
        ceiling=ceiling_rows([document for name, document in documents.items() if name.startswith("resample/")], labels[: len(settings["labels"])]),
        curves=pages.encoded(figures.learning_curves(histories)),
        trainings=trainings,
        settings=yaml.safe_dump(settings, sort_keys=False, allow_unicode=True),
        cost=cost_rows(list(runs.values())),
        versions=facts,
        hashes=[
            (str(Path(name).parent / artefact), content)
            for name in hashed
            for artefact, content in documents[name]["provenance"]["artefacts"].items()
        ],
    )
