"""What a grid costs the labels: each case's label goes there and back, for one or several spacings; then the table of all cases."""

import argparse
import contextlib
import csv
import io
from pathlib import Path

import SimpleITK as sitk

from teravox import bulk, ceiling, ceiling_table, files, hashing, numa, plan, progress, resample, unpacked
from teravox import config as configuration
from teravox.errors import parse_settings, positive, run_command
from teravox.records import Recorder


def case_command(args: argparse.Namespace) -> None:
    recorder = Recorder("ceiling", __file__)
    settings = configuration.filled(args.settings, "ceiling")
    options = settings["resample"]
    sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(1)  # tiles run side by side
    case = unpacked.accepted(args.case)
    spacings = [options["spacing"], *(spacing for spacing in options["ceiling_spacings"] if spacing != options["spacing"])]
    memory = int(args.memory_mb * 1e6)
    need = max(plan.resampling_bytes(case, options, spacing, args.memory_mb) for spacing in spacings)
    numa.require_memory(need, f"the ceiling of case '{case['case']}'")
    folder = args.out.parent
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    with contextlib.ExitStack() as stack:
        sources = unpacked.opened(case, args.case.parent, unpacked.needed(settings), folder, stack)
        native = sources["label"]
        ceiling.require_memory(native, settings, memory)
        bar = stack.enter_context(progress.volumes(case["case"], 2 * len(spacings)))
        for spacing in spacings:
            grid, lines = unpacked.grid_of(case, sources, settings, spacing)
            files.require_space(folder, grid.voxels * native.dtype.itemsize, f"the ceiling of case '{case['case']}'")
            with bulk.temporary(folder, grid.shape, native.dtype, grid.affine) as label:
                for share in resample.write_label(native, label, resample.label_way(native.grid, grid, options["label"]), memory, args.threads):
                    bar.update(share)
                scores = ceiling.scores(native, label, settings, folder, memory, args.threads, bar.update)
            found.append({"spacing": spacing, "shape": list(grid.shape), "labels": scores, "warnings": [*lines, *ceiling_table.warnings(scores)]})
    recorder.write(
        args.out,
        {"case": case["case"], "spacings": found},
        artefacts={args.out.name: hashing.text_digest(files.canonical_json(found))},
        inputs={f"ingest/{case['case']}/label.nii.gz": case["provenance"]["artefacts"]["label.nii.gz"]},
        settings=args.settings,
    )


def all_command(args: argparse.Namespace) -> None:
    recorder = Recorder("ceiling", __file__)
    names = list(files.read_json(args.split)["cases"])
    documents = {name: files.read_json(args.cases / f"{name}.json") for name in names}
    rows = ceiling_table.summary([document["spacings"] for document in documents.values()], [label["name"] for label in args.settings["labels"]])
    stream = io.StringIO()
    writer = csv.DictWriter(stream, ceiling_table.COLUMNS, delimiter="\t", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    table = stream.getvalue()
    files.write_text(args.out.with_suffix(".tsv"), table)
    recorder.write(
        args.out,
        {"cases": len(names), "rows": rows},
        artefacts={args.out.with_suffix(".tsv").name: hashing.text_digest(table), args.out.name: hashing.text_digest(files.canonical_json(rows))},
        inputs={f"ceiling/{name}.json": document["provenance"]["artefacts"][f"{name}.json"] for name, document in documents.items()},
        settings=args.settings,
    )
    print(ceiling_table.text(rows, len(names)))
    for name, document in documents.items():
        for entry in document["spacings"]:
            for line in entry["warnings"]:
                print(f"warning: case '{name}' at {ceiling_table.spelled(entry['spacing'])} mm: {line}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="case|all")
    one = commands.add_parser("case", help="score the label's way there and back of one case")
    one.set_defaults(function=case_command)
    one.add_argument("case", type=Path, help="case.json of the ingested case")
    one.add_argument("--threads", type=positive(int), default=1, help="tiles at a time; they change no value (default: 1)")
    one.add_argument("--memory-mb", type=positive(float), default=1024, help="memory above an idle process, MB; changes no value (default: 1024)")
    every = commands.add_parser("all", help="the table of all cases")
    every.set_defaults(function=all_command)
    every.add_argument("--split", type=Path, required=True, help="split.json: the accepted cases")
    every.add_argument("--cases", type=Path, required=True, help="folder of the cases' documents")
    for command in (one, every):
        command.add_argument(
            "--settings", type=parse_settings, required=True, help="JSON: channels, labels, ignore_value and resample of the configuration"
        )
        command.add_argument("--out", type=Path, required=True, help="JSON document to write; of all cases with a .tsv beside it")
    raise SystemExit(run_command(lambda args: args.function(args), parser))
