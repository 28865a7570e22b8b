"""Turn the source files of one case into canonical volumes on one grid, with a verdict (case.json)."""

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

from teravox import config as configuration
from teravox import contained, geometry, manifest, pseudonyms, statistics, store, survey, survey_cases, survey_files, survey_tables
from teravox import ingest as stage
from teravox.dicom import witness
from teravox.errors import RejectedCase, UserError, parse_settings, run_command
from teravox.records import Recorder


def channel(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"'{text}', expected NAME=PATH")
    return name, path


def positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"'{text}', expected a whole number from 1")
    return int(text)


def one_line(text: str) -> str:
    """A message that any file can hold: a file's name may have line breaks, or bytes that are not UTF-8."""
    return " ".join(text.splitlines()).encode("utf-8", "backslashreplace").decode()


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
            artefacts[f"{name}.nii.gz"], about = stage.keep(args.out / f"{name}.nii.gz", array, case.affine)
            described[name] = about | described_source(case.read[name])
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


def look(args: argparse.Namespace) -> None:
    """Survey a tree of DICOM files: print what there is, and write the tables."""
    if not args.folder.is_dir():
        raise UserError(f"{args.folder}: missing or no folder, expected a tree of DICOM files")
    if args.out.resolve().is_relative_to(args.folder.resolve()):
        raise UserError(f"{args.out}: lies in the folder that is surveyed, expected another one")
    key = pseudonyms.kept_key(args.key)
    config = configuration.load(args.configfile) if args.configfile else None
    found = survey_tables.scan_with_progress(args.folder, list(survey.tree(args.folder)), args.workers)
    volumes, left = survey.volumes(found, (config or {}).get("ingest") or configuration.defaults("ingest"))
    rules = configuration.defaults("channels[].match")
    proposed = [{"name": channel["name"], "match": rules | channel["match"]} for channel in survey_cases.proposed_channels(volumes)]
    channels = config["channels"] if config else proposed
    label = config["dataset"]["label"] if config else configuration.defaults("dataset.label")
    rows = survey_cases.cases(found, volumes, channels, label, key)
    survey_tables.write(args.out, found, volumes, left, rows, key, [channel["name"] for channel in channels], args.descriptions)
    print("\n".join(survey_tables.summary(found, volumes, left, rows)))
    print(f"written to {one_line(str(args.out))}: series.tsv, labels.tsv; files.tsv and lists/ (names of files), cases.tsv (proposed case table)")
    if not args.descriptions:
        print("with --descriptions the tables also hold the texts that rules can look at; they may name a patient")
    if proposed and not config:
        print("\nTo begin a configuration with, from coded attributes alone; labels are yours to name:\n")
        print("\n".join(survey_tables.proposal(args.folder, volumes)))


def survey_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ingest.py survey", description="Read the headers of a tree of DICOM files: studies, series, verdicts, and a proposed case table."
    )
    parser.add_argument("folder", type=Path, help="tree of DICOM files, in any nesting")
    parser.add_argument("--configfile", type=Path, help="configuration whose channels and labels are matched; else rules are proposed")
    parser.add_argument("--out", type=Path, default=Path("private/survey/last"), help="folder for the tables (default: private/survey/last)")
    parser.add_argument("--key", type=Path, default=Path("private/pseudonym.key"), help="key of the pseudonyms, made when it is missing")
    parser.add_argument("--workers", type=positive, default=survey_files.workers(), help="processes that read headers (default: one per core)")
    parser.add_argument(
        "--descriptions", action="store_true", help="write the texts too that rules look at, and names of segments: they may name a patient"
    )
    return parser


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
    if sys.argv[1:2] == ["survey"]:
        del sys.argv[1]
        raise SystemExit(run_command(look, survey_parser()))
    raise SystemExit(run_command(main, parser))
