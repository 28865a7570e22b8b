"""Resample all channels and the label of an ingested case to one isotropic grid."""

import argparse
from pathlib import Path

import numpy as np
import SimpleITK as sitk

from teravox import files, hashing, numa, statistics, store
from teravox import resample as stage
from teravox.errors import UserError, parse_settings, run_command
from teravox.records import Recorder


def main(args: argparse.Namespace) -> None:
    recorder = Recorder("resample", __file__)
    settings = args.settings
    sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(args.threads)
    case = files.read_json(args.case)
    if case["verdict"] == "rejected":
        raise UserError(f"{args.case}: the case was rejected ({case['reason']}), expected an accepted one")
    names = [channel["name"] for channel in settings["channels"]]
    voxel_bytes = sum(np.dtype(case["channels"][name]["dtype"]).itemsize for name in names) + 2
    numa.require_memory(stage.peak_bytes(case["grid"]["shape"], voxel_bytes), f"resampling case '{case['case']}'")
    images = [np.asarray(store.load(args.case.parent / f"{name}.nii.gz", case)[0]) for name in names]
    label, affine = store.load(args.case.parent / "label.nii.gz", case)
    label = np.asarray(label)
    args.out.mkdir(parents=True, exist_ok=True)
    paths = args.out / "image.nii", args.out / "label.nii"
    shape, _ = stage.resample_case(images, label, affine, settings["resample"]["spacing_mm"], *paths)
    (image, grid), (mask, _) = store.read(paths[0]), store.read(paths[1])
    lost = [
        name
        for name, count in statistics.label_voxels(label, settings["labels"]).items()
        if count and not statistics.label_voxels(mask, settings["labels"])[name]
    ]
    for name in lost:
        print(f"warning: label '{name}' of case '{case['case']}' has no voxel left at {settings['resample']['spacing_mm']} mm")
    recorder.write(
        args.out / "case.json",
        {
            "case": case["case"],
            "grid": {"shape": list(shape), "affine": grid.tolist()},
            "channels": {name: statistics.describe(image[..., i]) for i, name in enumerate(names)},
            "dtype": image.dtype.name,
            "label_voxels": statistics.label_voxels(mask, settings["labels"]),
            "labels_lost": lost,
        },
        artefacts={"image.nii": hashing.volume_digest(image, grid), "label.nii": hashing.volume_digest(mask, grid)},
        inputs={f"ingest/{case['case']}/{name}": content for name, content in case["provenance"]["artefacts"].items()},
        settings=settings,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", type=Path, help="case.json of the ingested case")
    parser.add_argument("--settings", type=parse_settings, required=True, help="JSON: channels, labels and resample of the configuration")
    parser.add_argument("--threads", type=int, default=1, help="threads of SimpleITK; they change no value (default: 1)")
    parser.add_argument("--out", type=Path, required=True, help="folder for image.nii, label.nii and case.json")
    raise SystemExit(run_command(main, parser))
