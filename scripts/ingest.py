"""Turn the source files of one case into canonical volumes on one grid, with a verdict (case.json)."""

import argparse
import os
import shutil
from pathlib import Path

import numpy as np

from teravox import geometry, hashing, manifest, statistics, store
from teravox import ingest as stage
from teravox.errors import RejectedCase, UserError, parse_settings, run_command
from teravox.records import Recorder


def channel(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"'{text}', expected NAME=PATH")
    return name, path


def one_line(text: str) -> str:
    """A message that any file can hold: a file's name may have line breaks, or bytes that are not UTF-8."""
    return " ".join(text.splitlines()).encode("utf-8", "backslashreplace").decode()


def main(args: argparse.Namespace) -> None:
    recorder = Recorder("ingest", __file__)
    settings = args.settings
    images = dict(args.image)
    sources = {**images, "label": args.label}
    taken, stats = manifest.take(sources)
    document = {"case": args.case, "patient": args.patient, "set": args.set, "sources": taken}
    for source in sources.values():
        if Path(os.path.realpath(source)).is_relative_to(os.path.realpath(args.out)):
            raise UserError(f"{source}: lies in {args.out}, which is rewritten; expected an output folder without sources")
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    artefacts: dict[str, str] = {}
    rejection = ""
    try:
        case = stage.ingest(images, args.label, settings["labels"], args.stacked, settings["ignore_value"])
    except RejectedCase as error:
        rejection = one_line(str(error))
        document |= {"verdict": "rejected", "reason": rejection}
    else:
        described = {}
        for name, array in case.images.items():
            artefacts[f"{name}.nii.gz"] = store.write(args.out / f"{name}.nii.gz", array, case.affine)
            described[name] = {
                **statistics.describe(array),
                "format": case.formats[name],
                "notes": case.notes[name],
                "voxels": hashing.array_digest(np.asarray(array, np.float32)),
            }
        artefacts["label.nii.gz"] = store.write(args.out / "label.nii.gz", case.label, case.affine)
        document |= {
            "verdict": "accepted",
            "reason": None,
            "grid": {"shape": list(case.label.shape), "affine": case.affine.tolist()},
            "spacing_mm": geometry.spacing_of(case.affine).tolist(),
            "orientation": case.orientation.tolist(),
            "channels": described,
            "label": {
                "format": case.formats["label"],
                "notes": case.notes["label"],
                "voxels": statistics.label_voxels(case.label, settings["labels"]),
                "ignored_voxels": 0 if settings["ignore_value"] is None else int(np.count_nonzero(case.label == settings["ignore_value"])),
            },
        }
        for role, notes in case.notes.items():
            for note in notes:
                print(f"note: {sources[role]}: {note}")
    recorder.write(
        args.out / "case.json",
        document,
        artefacts=artefacts,
        inputs={f"source/{args.case}/{role}": manifest.digest(taken[role]) for role in taken},
        settings=settings,
        run={"request": args.request, "sources": stats},
    )
    if rejection:
        if args.on_rejected == "stop":
            raise UserError(rejection)
        print(f"rejected: {rejection}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", required=True, help="identifier of the case")
    parser.add_argument("--patient", required=True, help="identifier of the patient")
    parser.add_argument("--set", choices=["train", "test"], default="train", help="which set the case belongs to")
    parser.add_argument("--image", type=channel, action="append", required=True, metavar="CHANNEL=PATH", help="file or DICOM folder, one per channel")
    parser.add_argument("--label", required=True, metavar="PATH", help="file, or DICOM SEG")
    parser.add_argument("--stacked", action="store_true", help="the channels are the volumes of one 4D file")
    parser.add_argument("--settings", type=parse_settings, required=True, help="JSON: channels, labels and ignore_value of the configuration")
    parser.add_argument("--out", type=Path, required=True, help="folder for the volumes and case.json, rewritten")
    parser.add_argument(
        "--on-rejected", choices=["stop", "record"], default="stop", help="whether a rejected case fails the command (default) or is only recorded"
    )
    parser.add_argument("--request", default="", help=argparse.SUPPRESS)
    raise SystemExit(run_command(main, parser))
