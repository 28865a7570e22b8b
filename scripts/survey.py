"""Look at a tree of DICOM files before anything is converted: studies, series, verdicts by headers, and a proposed case table."""

import argparse
from pathlib import Path

from teravox import config as configuration
from teravox import pseudonyms, survey, survey_cases, survey_files, survey_tables
from teravox.errors import UserError, one_line, run_command


def positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"'{text}', expected a whole number from 1")
    return int(text)


def main(args: argparse.Namespace) -> None:
    """Survey a tree of DICOM files: print what there is, and write the tables."""
    if not args.folder.is_dir():
        raise UserError(f"{args.folder}: missing or no folder, expected a tree of DICOM files")
    if args.out.resolve().is_relative_to(args.folder.resolve()):
        raise UserError(f"{args.out}: lies in the folder that is surveyed, expected another one")
    config = configuration.load(args.configfile) if args.configfile else None
    results = Path(config["results"] if config else "results")
    for path in (args.out, args.key):
        if path.resolve().is_relative_to(results.resolve()):
            raise UserError(f"{path}: lies in {results}, which may be given away; expected a private folder, since names of files are written")
    key = pseudonyms.kept_key(args.key)
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


if __name__ == "__main__":
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
    raise SystemExit(run_command(main, parser))
