"""Predict the peak memory of every training from shapes alone, and show where it would be placed."""

import argparse
from pathlib import Path
from typing import Any

from teravox import files, hashing, numa, split
from teravox import plan as stage
from teravox.architecture import Architecture
from teravox.errors import UserError, parse_settings, run_command
from teravox.records import Recorder

SHARD_COLUMNS = ("shard", "cases", "mb", "target_mb", "proposed_count")
COLUMNS = ("fold", "cases", "largest_case", "shape", "padded", "threads", "predicted_peak_mb", "granted_mb", "refused", "numactl", "reason")


def main(args: argparse.Namespace) -> None:
    recorder = Recorder("plan", __file__)
    settings = args.settings
    options = settings["train"]
    network = Architecture.of(settings)
    document = files.read_json(args.split)
    resampled = {case: files.read_json(args.resampled / case / "case.json") for case in document["cases"]}
    trained = {fold: {case: resampled[case]["grid"]["shape"] for case in split.training_cases(document, fold)} for fold in options["folds"]}
    rows = stage.plan_rows(network, trained, options["prefetch_mb"], options["patch_size"])
    shards = [{"shard": name, "cases": len(cases), "bytes": sum(stage.native_bytes(resampled[case]) for case in cases)} for name, cases in args.shard]
    proposed = stage.proposed_shards([shard["bytes"] for shard in shards], settings["shard"]["target_mb"] * 1e6)
    for row in rows:
        row["threads"] = options["threads"]
    # The table also shows what this machine would do; the document, which later stages read, does not.
    granted, nodes = numa.granted_bytes(), numa.topology()
    shown = [{**row, **placement(row, granted, nodes, args.policy)} for row in rows]
    lines = ["\t".join(COLUMNS), *("\t".join(cell(row[name]) for name in COLUMNS) for row in shown)]
    files.write_text(args.out.with_suffix(".tsv"), "\n".join(lines) + "\n")
    target = settings["shard"]["target_mb"]
    table = ["\t".join(SHARD_COLUMNS), *(f"{row['shard']}\t{row['cases']}\t{row['bytes'] / 1e6:.1f}\t{target:g}\t{proposed}" for row in shards)]
    files.write_text(args.out.with_name(f"{args.out.stem}_shards.tsv"), "\n".join(table) + "\n")
    recorder.write(
        args.out,
        {"trainings": rows, "parameters": network.parameters, "shards": shards, "proposed_shards": proposed},
        artefacts={args.out.name: hashing.text_digest(files.canonical_json([rows, shards, proposed]))},
        inputs={"split": document["provenance"]["artefacts"]["split.json"]},
        settings=settings,
        run={"memory_granted_bytes": granted},
    )
    print("\n".join([*lines, "", *table]))


def placement(row: dict[str, Any], granted: int, nodes: list[numa.Node], policy: str) -> dict[str, Any]:
    """What this machine would do with a training: numactl's arguments and why, or the reason to refuse it."""
    need = row["predicted_peak_bytes"]
    found = {"predicted_peak_mb": round(need / 1e6), "granted_mb": round(granted / 1e6), "numactl": "none", "refused": row["refused"]}
    try:
        arguments, found["reason"] = numa.choose(nodes, need, policy)
        found["numactl"] = " ".join(arguments) or "none"
    except UserError as error:
        found["reason"] = found["refused"] = str(error)
    if need > granted:
        found["refused"] = f"needs more than the {granted / 1e6:.0f} MB available"
    return {**found, "refused": found["refused"] or "no"}


def cell(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, list) else str(value)


def shard(text: str) -> tuple[str, list[str]]:
    name, equals, cases = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"'{text}', expected SHARD=CASE,CASE")
    return name, [case for case in cases.split(",") if case]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resampled", type=Path, required=True, help="folder with a subfolder per resampled case")
    parser.add_argument("--split", type=Path, required=True, help="split.json")
    parser.add_argument("--shard", type=shard, action="append", default=[], metavar="SHARD=CASE,CASE", help="a shard and the cases in it")
    parser.add_argument("--policy", choices=["auto", "none", "bind", "interleave"], default="auto", help="numa.policy of the configuration")
    parser.add_argument("--settings", type=parse_settings, required=True, help="JSON: channels, labels, train and shard of the configuration")
    parser.add_argument("--out", type=Path, required=True, help="plan.json; plan.tsv and plan_shards.tsv are written beside it")
    raise SystemExit(run_command(main, parser))
