"""Predict the peak memory of every training from shapes alone, and show where it would be placed."""

import argparse
from pathlib import Path

from teravox import files, hashing, numa, split
from teravox import plan as stage
from teravox.architecture import Architecture
from teravox.errors import parse_settings, run_command
from teravox.records import Recorder

COLUMNS = ("fold", "cases", "largest_case", "shape", "padded", "predicted_peak_mb", "threads", "refused")


def main(args: argparse.Namespace) -> None:
    recorder = Recorder("plan", __file__)
    settings = args.settings
    options = settings["train"]
    network = Architecture.of(settings)
    document = files.read_json(args.split)
    shapes = {case: files.read_json(args.resampled / case / "case.json")["grid"]["shape"] for case in document["cases"]}
    rows = stage.plan_rows(network, {fold: {case: shapes[case] for case in split.training_cases(document, fold)} for fold in options["folds"]})
    for row in rows:
        row["threads"] = options["threads"]
    table = ["\t".join(COLUMNS)]
    for row in rows:
        shown = {**row, "predicted_peak_mb": round(row["predicted_peak_bytes"] / 1e6), "refused": row["refused"] or "no"}
        table.append("\t".join("x".join(map(str, value)) if isinstance(value := shown[name], list) else str(value) for name in COLUMNS))
    text = "\n".join(table) + "\n"
    files.write_text(args.out.with_suffix(".tsv"), text)
    nodes = numa.topology()
    placements = {
        str(row["fold"]): dict(zip(("numactl", "reason"), numa.choose(nodes, row["predicted_peak_bytes"], args.policy), strict=True)) for row in rows
    }
    recorder.write(
        args.out,
        {"trainings": rows, "parameters": network.parameters},
        artefacts={args.out.with_suffix(".tsv").name: hashing.text_digest(text)},
        inputs={"split": document["provenance"]["artefacts"]["split.json"]},
        settings=settings,
        run={"placements": placements, "memory_granted_bytes": numa.granted_bytes()},
    )
    print(text, end="")
    for fold, placement in placements.items():
        print(f"fold {fold}: numactl {' '.join(placement['numactl']) or '(none)'}: {placement['reason']}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resampled", type=Path, required=True, help="folder with a subfolder per resampled case")
    parser.add_argument("--split", type=Path, required=True, help="split.json")
    parser.add_argument("--policy", choices=["auto", "none", "bind", "interleave"], default="auto", help="numa.policy of the configuration")
    parser.add_argument("--settings", type=parse_settings, required=True, help="JSON: channels, labels and train of the configuration")
    parser.add_argument("--out", type=Path, required=True, help="plan.json; plan.tsv is written beside it")
    raise SystemExit(run_command(main, parser))
