"""Turn the source files of one case into canonical volumes, with a verdict (case.json)."""

import argparse
import os
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

from teravox import config as configuration
from teravox import contained, geometry, manifest, pseudonyms, statistics, store
from teravox import ingest as stage
from teravox.dicom import witness
from teravox.errors import RejectedCase, UserError, one_line, parse_settings, run_command
from teravox.records import Recorder


def channel(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"'{text}', expected NAME=PATH")
    return name, path


def verdict(corrections: list[str]) -> str:
    return "corrected" if corrections else "ok"


def main(args: argparse.Namespace) -> None:
    recorder = Recorder("ingest", __file__)
    settings, key = configuration.filled(args.settings, "ingest"), pseudonyms.key_of(args.key)
    images = dict(args.image)
    sources = {**images, "label": args.label}
    taken, stats = manifest.take(sources, key)

    places = manifest.places(sources)

    def clean(text: str) -> str:
        """One line without the names of files inside folders, and without the patient's identifier, which paths often hold."""
        for path, place in places.items():
            text = text.replace(path, place)
        return pseudonyms.hide(one_line(text), args.patient, key)

    def described_source(read: stage.Read) -> dict[str, Any]:
        """A role's verdict, and for a DICOM series which instance each slice is of and who else reads it so."""
        found: dict[str, Any] = {
            "format": read.format,
            "verdict": verdict(read.corrections),
            "corrections": [clean(line) for line in read.corrections],
            "notes": [clean(line) for line in read.notes],
        }
        if read.instances:
            shown = (lambda uid: uid) if settings["ingest"]["keep_uids"] else (lambda uid: pseudonyms.uid_hash(uid, key))
            found["slices"] = {"axis": "xyz"[read.slice_axis or 0], "instances": [[shown(uid), frame + 1] for uid, frame in read.instances]}
            found["checked_by"] = read.checked_by
            found["dcm2niix"] = {"version": witness.version(), "arguments": list(witness.ARGUMENTS)}
        return found

    def accounted(role: str, read: stage.Read) -> list[dict[str, str]]:
        """What became of every file of a source; a volume's own files are used."""
        members = [path for path, _ in manifest.members(Path(sources[role]))]
        accounts = {account.path: account for account in read.accounts}
        found = []
        for number, path in enumerate(members, start=1):
            account = accounts.get(path)
            found.append(
                {
                    "role": role,
                    "file": f"{number} of {len(members)}",
                    "status": account.status if account else "used",
                    "reason": clean(account.reason) if account else "",
                }
            )
        return found

    document = {"case": args.case, "patient": args.patient, "key": pseudonyms.key_id(key), "set": args.set, "sources": taken}
    for source in sources.values():
        if Path(os.path.realpath(source)).is_relative_to(os.path.realpath(args.out)):
            raise UserError(clean(f"{source}: lies in {args.out}, which is rewritten; expected an output folder without sources"))
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    artefacts: dict[str, str] = {}
    rejection = ""
    try:
        if args.fault:
            raise RejectedCase(args.fault)
        case = stage.ingest(images, args.label, settings, args.stacked, contained.call)
    except RejectedCase as error:
        rejection = clean(str(error))
        document |= {"verdict": "rejected", "reason": rejection}
    except UserError as error:
        raise UserError(clean(str(error))) from None
    else:
        described = {}
        for name, array in case.images.items():
            artefacts[f"{name}.nii.gz"], about = stage.keep(args.out / f"{name}.nii.gz", array, case.affines[name])
            grid = {"shape": list(array.shape), "affine": case.affines[name].tolist()}
            described[name] = about | described_source(case.read[name]) | {"grid": grid}
        artefacts["label.nii.gz"] = store.write(args.out / "label.nii.gz", case.label, case.affine)
        document |= {
            "verdict": verdict([line for read in case.read.values() for line in read.corrections]),
            "reason": None,
            "grid": {"shape": list(case.label.shape), "affine": case.affine.tolist()},
            "spacing_mm": geometry.spacing_of(case.affine).tolist(),
            "orientation": case.orientation.tolist(),
            "channels": described,
            "label": {
                **described_source(case.read["label"]),
                "voxels": statistics.label_voxels(case.label, settings["labels"]),
                "ignored_voxels": 0 if settings["ignore_value"] is None else int(np.count_nonzero(case.label == settings["ignore_value"])),
            },
            "files": [entry for role in sources for entry in accounted(role, case.read[role])],
        }
        for role, read in case.read.items():
            for word, lines in (("corrected", read.corrections), ("note", read.notes)):
                for line in lines:
                    print(f"{word}: {clean(sources[role])}: {clean(line)}")
    recorder.write(
        args.out / "case.json",
        document,
        artefacts=artefacts,
        inputs={f"source/{args.case}/{role}": manifest.digest(taken[role]) for role in taken},
        settings=args.settings,
        run={"command": [clean(part) for part in (Path(__file__).name, *sys.argv[1:])], "request": args.request, "sources": stats},
    )
    if rejection:
        if args.on_rejected == "stop":
            raise UserError(rejection)
        print(f"rejected: {rejection}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, epilog="`ingest.py survey FOLDER` looks at a tree of DICOM files first.")
    parser.add_argument("--case", required=True, help="identifier of the case")
    parser.add_argument("--patient", required=True, help="pseudonym of the patient (see docs/privacy.md)")
    parser.add_argument("--set", choices=["train", "test"], default="train", help="which set the case belongs to")
    parser.add_argument("--image", type=channel, action="append", required=True, metavar="CHANNEL=PATH", help="file or DICOM folder, one per channel")
    parser.add_argument("--label", required=True, metavar="PATH", help="file, DICOM SEG or RTSTRUCT")
    parser.add_argument("--key", required=True, metavar="FILE", help="key of the pseudonyms, or 'public' for the demo cohort's")
    parser.add_argument("--stacked", action="store_true", help="the channels are the volumes of one 4D file")
    parser.add_argument("--fault", default="", metavar="REASON", help="reject the case for a reason that the data set's layout shows")
    parser.add_argument("--settings", type=parse_settings, required=True, help="JSON: channels, labels, ignore_value and ingest of the configuration")
    parser.add_argument("--out", type=Path, required=True, help="folder for the volumes and case.json, rewritten")
    parser.add_argument(
        "--on-rejected", choices=["stop", "record"], default="stop", help="whether a rejected case fails the command (default) or is only recorded"
    )
    parser.add_argument("--request", default="", help=argparse.SUPPRESS)
    if sys.argv[1:2] == ["survey"]:  # a command of its own: a change there must ingest nothing again
        del sys.argv[1]
        runpy.run_path(str(Path(__file__).with_name("survey.py")), run_name="__main__")
    raise SystemExit(run_command(main, parser))
