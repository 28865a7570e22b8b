"""Write the report of a run: one self-contained HTML page."""

import argparse
from pathlib import Path

from teravox import files, hashing, report
from teravox.errors import parse_settings, run_command
from teravox.records import Recorder


def main(args: argparse.Namespace) -> None:
    recorder = Recorder("report", __file__)
    settings = args.settings
    page = report.render(args.results, settings)
    files.write_text(args.out, page)
    summary = files.read_json(args.results / "evaluation" / "summary.json")
    recorder.write(
        args.out.with_suffix(".json"),
        {},
        artefacts={args.out.name: hashing.text_digest(page)},
        inputs={f"evaluation/{name}": content for name, content in summary["provenance"]["artefacts"].items()},
        settings=settings,
    )
    print(f"{args.out}: {len(page.encode()) / 1e6:.1f} MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="the run's results folder")
    parser.add_argument("--settings", type=parse_settings, required=True, help="JSON: everything of the configuration that numbers depend on")
    parser.add_argument("--out", type=Path, required=True, help="report.html; report.json is written beside it")
    raise SystemExit(run_command(main, parser))
