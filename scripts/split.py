"""Gather the verdicts of ingestion, and assign the accepted cases to folds and test set by patient."""

import argparse
from pathlib import Path

from teravox import files, hashing
from teravox import split as stage
from teravox.cases import read_cases
from teravox.errors import UserError, parse_settings, run_command
from teravox.records import Recorder


def main(args: argparse.Namespace) -> None:
    recorder = Recorder("split", __file__)
    settings = args.settings
    identifiers = {case.case: case.patient for case in read_cases({**settings, "private": args.private})}
    cases = [files.read_json(args.ingested / case / "case.json") for case in identifiers]
    stage.check_pseudonyms(cases, identifiers)
    rejected = {case["case"]: case["reason"] for case in cases if case["verdict"] == "rejected"}
    if rejected and settings["on_rejected"] == "stop":
        for reason in rejected.values():
            print(f"rejected: {reason}")
        raise UserError(
            f"{len(rejected)} of {len(cases)} cases rejected ({next(iter(rejected.values()))}); mend the files, or set on_rejected: exclude"
        )
    accepted = [case for case in cases if case["verdict"] != "rejected"]
    if not accepted:
        raise UserError(f"split: all {len(cases)} cases were rejected ({next(iter(rejected.values()))})")
    options = settings["split"]
    named = [{**case, "patient": identifiers[case["case"]]} for case in accepted]  # folds depend on no key
    assigned = stage.split(named, options["folds"], options["seed"], options["test_fraction"])
    for case in accepted:
        assigned[case["case"]]["patient"] = case["patient"]
    stage.check_leaks(accepted, assigned)
    recorder.write(
        args.out,
        {"cases": assigned, "excluded": rejected, "folds": options["folds"], "spacing_mm": stage.median_spacing(accepted, assigned)},
        artefacts={args.out.name: hashing.text_digest(files.canonical_json(assigned))},
        inputs={f"ingest/{case['case']}": hashing.text_digest(files.canonical_json(case["provenance"]["artefacts"])) for case in cases},
        settings=settings,
        seeds={"split": options["seed"]},
    )
    for fold in range(options["folds"]):
        print(f"fold {fold}: {sum(case['fold'] == fold for case in assigned.values())} cases")
    print(f"test: {sum(case['set'] == 'test' for case in assigned.values())} cases, excluded: {len(rejected)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ingested", type=Path, required=True, help="folder with a subfolder per ingested case")
    parser.add_argument("--settings", type=parse_settings, required=True, help="JSON: dataset, channels, labels, ignore_value, split and on_rejected")
    parser.add_argument("--private", default="private", help="folder with what a survey of a DICOM tree found (default: private)")
    parser.add_argument("--out", type=Path, required=True, help="split.json")
    raise SystemExit(run_command(main, parser))
