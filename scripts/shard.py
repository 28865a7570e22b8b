"""Write the resampled cases of one shard as TFRecord blocks, with an index."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from teravox import files, hashing, store
from teravox import shards as stage
from teravox.errors import parse_settings, run_command
from teravox.records import Recorder


def case(text: str) -> tuple[str, str]:
    name, equals, patient = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"'{text}', expected CASE=PATIENT")
    return name, patient


def main(args: argparse.Namespace) -> None:
    recorder = Recorder("shard", __file__)
    settings = args.settings
    channels = [channel["name"] for channel in settings["channels"]]
    patients = dict(args.case)
    documents = {name: files.read_json(args.resampled / name / "case.json") for name in patients}

    def blocks() -> Iterator[tuple[str, int, bytes]]:
        for name, document in documents.items():
            image, grid = store.load(args.resampled / name / "image.nii", document)
            label, _ = store.load(args.resampled / name / "label.nii", document)
            about = {
                "case": name,
                "patient": patients[name],
                "affine": grid,
                "channels": channels,
                "statistics": document["channels"],
            }
            planes = stage.block_planes(
                label.shape, image.dtype.itemsize * image.shape[3] + label.dtype.itemsize, settings["shard"]["block_mb"] * 1e6
            )
            for block, first in enumerate(range(0, label.shape[2], planes)):
                last = min(first + planes, label.shape[2])
                yield name, block, stage.block_example(image, label, first, last, {**about, "block": block})

    path = args.out / f"{args.shard}.tfrecord"
    index = stage.write_shard(path, blocks())
    recorder.write(
        args.out / f"{args.shard}.index.json",
        index,
        artefacts={path.name: hashing.text_digest(files.canonical_json([record["sha256"] for record in index["records"]]))},
        inputs={f"resample/{name}/{file}": content for name in patients for file, content in documents[name]["provenance"]["artefacts"].items()},
        settings=settings,
    )
    print(f"{path}: {len(index['records'])} blocks of {len(patients)} cases, {index['bytes']} bytes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--case", type=case, action="append", default=[], metavar="CASE=PATIENT", help="a case of the shard and its patient's pseudonym"
    )
    parser.add_argument("--resampled", type=Path, required=True, help="folder with a subfolder per resampled case")
    parser.add_argument("--shard", required=True, help="name of the shard, such as 00000-of-00004")
    parser.add_argument("--settings", type=parse_settings, required=True, help="JSON: channels, labels and shard of the configuration")
    parser.add_argument("--out", type=Path, required=True, help="folder for the shards")
    raise SystemExit(run_command(main, parser))
