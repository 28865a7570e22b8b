"""Resample all channels and the label of an ingested case onto one grid, and score what the label's way there and back costs."""

import argparse
import contextlib
import functools
from pathlib import Path

import numpy as np
import SimpleITK as sitk

from teravox import bulk, ceiling, ceiling_table, files, numa, plan, progress, sampling, statistics, unpacked
from teravox import config as configuration
from teravox import resample as stage
from teravox.errors import UserError, parse_settings, positive, run_command
from teravox.records import Recorder


def main(args: argparse.Namespace) -> None:
    recorder = Recorder("resample", __file__)
    settings = configuration.filled(args.settings, "resample")
    options = settings["resample"]
    sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(1)  # tiles run side by side
    case = unpacked.accepted(args.case)
    names = [channel["name"] for channel in settings["channels"]]
    memory, what = int(args.memory_mb * 1e6), f"resampling case '{case['case']}'"
    granted = numa.require_memory(plan.resampling_bytes(case, options, options["spacing"], args.memory_mb), what)
    if args.out.resolve() == args.case.parent.resolve():
        raise UserError(f"{args.out}: holds the ingested case, expected another folder")
    args.out.mkdir(parents=True, exist_ok=True)
    for left in args.out.glob(".writing-*"):  # by a run that was killed
        left.unlink()
    image_path, label_path = args.out / "image.nii", args.out / "label.nii"
    described = {}
    with contextlib.ExitStack() as stack:
        sources = unpacked.opened(case, args.case.parent, names, args.out, stack)
        native = sources["label"]
        ceiling.require_memory(native, settings, memory)
        grid, lines = unpacked.grid_of(case, sources, settings, options["spacing"])
        dtype = np.result_type(*(sources[name].dtype for name in names))
        written = grid.voxels * (len(names) * dtype.itemsize + native.dtype.itemsize) + native.grid.voxels * native.dtype.itemsize
        files.require_space(args.out, written, what)
        bar = stack.enter_context(progress.volumes(case["case"], len(names) + 2))
        # Both get their names in the end, so that a failure leaves neither.
        image = stack.enter_context(bulk.create(stack.enter_context(files.atomic(image_path)), (*grid.shape, len(names)), dtype, grid.affine))
        label = stack.enter_context(bulk.create(stack.enter_context(files.atomic(label_path)), grid.shape, native.dtype, grid.affine))
        for index, channel in enumerate(settings["channels"]):
            about, source = case["channels"][channel["name"]], sources[channel["name"]]
            limits = about["min"], about["max"]
            wanted = stage.background_of(channel, limits)
            background = float(stage.as_dtype(np.array(wanted), dtype))
            if not np.isclose(background, wanted):
                lines.append(f"background of channel '{channel['name']}' is {background:g}, not {wanted:g}: the image's type is {dtype.name}")
            way = sampling.sampler(source.grid, grid, options["interpolation"])
            for share in stage.write_image(source, image, index, way, limits, background, memory, args.threads):
                bar.update(share)
            statistic = statistics.describe_parts(functools.partial(image.parts, index), dtype)
            described[channel["name"]] = statistic | {"background": background}
        for share in stage.write_label(native, label, stage.label_way(native.grid, grid, options["label"]), memory, args.threads):
            bar.update(share)
        counts = statistics.label_voxels(label.parts(), settings["labels"])
        scores = ceiling.scores(native, label, settings, args.out, memory, args.threads, bar.update)
        artefacts = {image_path.name: image.digest(), label_path.name: label.digest()}
    lines += ceiling_table.warnings(scores)
    for line in lines:
        print(f"warning: case '{case['case']}': {line}")
    recorder.write(
        args.out / "case.json",
        {
            "case": case["case"],
            "grid": label.grid.document(),
            "channels": described,
            "dtype": dtype.name,
            "label_dtype": label.dtype.name,
            "label_voxels": counts,
            "ceiling": scores,
            "warnings": lines,
        },
        artefacts=artefacts,
        inputs={f"ingest/{case['case']}/{name}": content for name, content in case["provenance"]["artefacts"].items()},
        settings=args.settings,
        run={"threads": args.threads, "memory_mb": args.memory_mb, "memory_granted_bytes": granted},
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", type=Path, help="case.json of the ingested case")
    parser.add_argument(
        "--settings", type=parse_settings, required=True, help="JSON: channels, labels, ignore_value and resample of the configuration"
    )
    parser.add_argument("--threads", type=positive(int), default=1, help="tiles at a time; they change no value (default: 1)")
    parser.add_argument("--memory-mb", type=positive(float), default=1024, help="memory above an idle process, MB; changes no value (default: 1024)")
    parser.add_argument("--out", type=Path, required=True, help="folder for image.nii, label.nii and case.json; unpacked sources lie there meanwhile")
    raise SystemExit(run_command(main, parser))
