"""Look into shards: verify every byte, list what they hold, show one case, or extract it as NIfTI."""

import argparse
import os
import sys
from pathlib import Path

from tqdm import tqdm

from teravox import files, shard_views
from teravox import shard_checks as checks
from teravox.errors import UserError, run_command
from teravox.shard_reader import ShardReader


def verify(args: argparse.Namespace) -> None:
    indexes = shard_views.indexes_of(args.shards)
    beside = Path(os.path.relpath(indexes[0].resolve().parent.parent / "audit" / "ledger.json"))
    ledger = files.read_json(args.ledger or beside) if args.ledger or beside.exists() else None
    jobs = ledger.get("jobs") if isinstance(ledger, dict) else None
    if ledger is not None and not (
        isinstance(jobs, list) and jobs and all(isinstance(job, dict) and {"document", "digest"} <= job.keys() for job in jobs)
    ):
        raise UserError(f"{args.ledger or beside}: is no ledger, expected what snakemake --cores all writes to audit/ledger.json")
    if args.against and not args.against.is_dir():
        raise UserError(f"{args.against}: is no folder, expected one with a subfolder per resampled case, such as results/resample")
    size, faults = sum(checks.size_of(path) for path in indexes), 0
    with tqdm(total=2 * size if args.against else size, desc="verify", unit="B", unit_scale=True, disable=None) as bar:
        for line in checks.faults(indexes, ledger, args.against, bar.update):
            faults += 1
            bar.write(f"fault: {line}", file=sys.stdout)
    print(f"shards: {len(indexes)}, {size / 1e6:,.1f} MB, every record against its index")
    print(f"indexes against {args.ledger or beside}" if ledger else f"NOT against a ledger: there is none at {beside}")
    print(f"every voxel against {args.against}" if args.against else "not against resampled volumes: --against was not given")
    if faults:
        raise UserError(f"{args.shards[0]}: faults: {faults}; run snakemake --cores all --forcerun write_shard, which writes all shards again")
    print("no fault")


def listing(args: argparse.Namespace) -> None:
    print("\n".join(shard_views.listing(shard_views.indexes_of(args.shards))))


def show(args: argparse.Namespace) -> None:
    print("\n".join(shard_views.description(ShardReader(shard_views.indexes_of(args.shards)), args.case)))


def extract(args: argparse.Namespace) -> None:
    digests = shard_views.extract(ShardReader(shard_views.indexes_of(args.shards)), args.case, args.planes, args.out)
    for name, digest in digests.items():
        print(f"{args.out / name}: content hash {digest}")


def planes(text: str) -> tuple[int, int]:
    first, _, last = text.partition(":")
    try:
        return int(first), int(last)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}', expected FIRST:END such as 0:16") from None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="verify|list|show|extract")
    for function, name, count, text in (
        (verify, "verify", "+", "check every byte of shards against their indexes, and the indexes against the run's ledger"),
        (listing, "list", "+", "list the cases of shards"),
        (show, "show", 1, "show what is known of a case"),
        (extract, "extract", 1, "write a case as image.nii and label.nii"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("shards", type=Path, nargs=count, help="folder of shards, such as results/shards, or a shard")
        command.set_defaults(function=function)
        if function is verify:
            command.add_argument(
                "--against", type=Path, metavar="FOLDER", help="compare voxel for voxel with resampled cases, as in results/resample"
            )
            command.add_argument("--ledger", type=Path, help="ledger.json (default: ../audit/ledger.json of the shards, if it is there)")
        if function in (show, extract):
            command.add_argument("case", help="name of the case")
        if function is extract:
            command.add_argument("--planes", type=planes, metavar="FIRST:END", help="these planes along z alone, from 0, END left out")
            command.add_argument("--out", type=Path, required=True, help="folder for image.nii and label.nii")
    raise SystemExit(run_command(lambda args: args.function(args), parser))
