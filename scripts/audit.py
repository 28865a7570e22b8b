"""Write the ledger of a run: every artefact with its content hash, inputs, settings, seeds, command, versions and machine."""

import argparse
from pathlib import Path

from teravox import files, layout
from teravox import ledger as stage
from teravox.errors import run_command


def main(args: argparse.Namespace) -> None:
    documents = [*layout.documents(args.results, args.folds, args.count), args.results / "report.json"]
    found = stage.ledger(args.results, documents)
    files.write_json(args.out, found)
    print(f"{args.out}: {len(found['artefacts'])} artefacts of {len(found['jobs'])} jobs")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="the run's results folder")
    parser.add_argument("--folds", type=int, nargs="+", required=True, help="the trained folds")
    parser.add_argument("--count", type=int, required=True, help="number of shards")
    parser.add_argument("--out", type=Path, required=True, help="ledger.json")
    raise SystemExit(run_command(main, parser))
