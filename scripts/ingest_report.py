"""Write the verdicts of ingestion as a table (verdicts.tsv) and as a page that opens offline."""

import argparse
from collections import Counter
from pathlib import Path

from teravox import files, hashing
from teravox import ingest_report as stage
from teravox.cases import read_cases
from teravox.errors import parse_settings, run_command
from teravox.records import Recorder


def main(args: argparse.Namespace) -> None:
    recorder = Recorder("ingest_report", __file__)
    settings = args.settings
    cases = [files.read_json(args.ingested / case.case / "case.json") for case in read_cases({**settings, "private": args.private})]
    table, page = stage.table(cases), stage.render(args.ingested, cases, settings["on_rejected"])
    tsv = args.out.with_name("verdicts.tsv")
    files.write_text(tsv, table)
    files.write_text(args.out, page)
    counts = Counter(case["verdict"] for case in cases)
    recorder.write(
        args.out.with_suffix(".json"),
        {"verdicts": {verdict: counts[verdict] for verdict in stage.VERDICTS}},
        artefacts={tsv.name: hashing.text_digest(table), args.out.name: hashing.text_digest(page)},
        inputs={f"ingest/{case['case']}": hashing.text_digest(files.canonical_json(case["provenance"]["artefacts"])) for case in cases},
        settings=settings,
    )
    print(f"{args.out}: {', '.join(f'{counts[verdict]} {verdict}' for verdict in reversed(stage.VERDICTS))}, {len(page.encode()) / 1e6:.1f} MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ingested", type=Path, help="folder with a subfolder per ingested case")
    parser.add_argument("--settings", type=parse_settings, required=True, help="JSON: dataset, channels, split and on_rejected of the configuration")
    parser.add_argument("--private", default="private", help="folder with what a survey of a DICOM tree found (default: private)")
    parser.add_argument("--out", type=Path, required=True, help="the page; verdicts.tsv and a JSON document are written beside it")
    raise SystemExit(run_command(main, parser))
