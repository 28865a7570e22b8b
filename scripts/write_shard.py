"""Write the resampled cases of one shard as TFRecord blocks, with an index."""

import argparse
import contextlib
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from teravox import config as configuration
from teravox import files, plan, progress, resampled, shards
from teravox import shard_writer as stage
from teravox.errors import UserError, parse_settings, positive, run_command
from teravox.records import Recorder


def case(text: str) -> tuple[str, str]:
    name, equals, patient = text.partition("=")
    if not equals or not re.fullmatch("[A-Za-z0-9_-]+", name) or not patient:
        raise argparse.ArgumentTypeError(f"'{text}', expected CASE=PATIENT")
    return name, patient


def shard(text: str) -> str:
    if not re.fullmatch(r"\d{5}-of-\d{5}", text):
        raise argparse.ArgumentTypeError(f"'{text}', expected a name such as 00000-of-00004")
    return text


def main(args: argparse.Namespace) -> None:
    recorder = Recorder("shard", __file__)
    settings = configuration.filled(args.settings, "shard")
    options = settings["shard"]
    channels = [channel["name"] for channel in settings["channels"]]
    patients = dict(args.case)
    if len(patients) < len(args.case):
        raise UserError(f"--case: names a case more than once, expected each once: {', '.join(name for name, _ in args.case)}")
    documents = {name: files.read_json(args.resampled / name / "case.json") for name in patients}
    path = args.out / f"{args.shard}.tfrecord"
    args.out.mkdir(parents=True, exist_ok=True)
    for left in args.out.glob(f".writing-*-{args.shard}.*"):  # by a run that was killed
        left.unlink()
    native = sum(plan.native_bytes(document) for document in documents.values())
    if options["compression"] == "none":
        files.require_space(args.out, native, f"shard {args.shard}")

    @contextlib.contextmanager
    def volume(name: str) -> Iterator[stage.Volume]:
        folder = args.resampled / name
        with resampled.opened(folder, channels) as found, ThreadPoolExecutor(1) as checker:
            checked = checker.submit(resampled.check, folder, found)  # while the blocks are written: a fault in the end leaves no shard
            yield stage.Volume(name, found.about(patients[name], channels), found.image_planes, found.label_planes)
            checked.result()

    (args.out / f"{args.shard}.index.json").unlink(missing_ok=True)  # it must never stand beside another shard than its own
    with contextlib.closing(progress.cases(patients, args.shard)) as bar:
        index = stage.write_shard(path, map(volume, bar), options["block_mb"] * 1e6, options["compression"], args.threads)
    recorder.write(
        args.out / f"{args.shard}.index.json",
        index,
        artefacts={path.name: shards.content_digest(index)},
        inputs={f"resample/{name}/{file}": content for name in patients for file, content in documents[name]["provenance"]["artefacts"].items()},
        settings=args.settings,
        run={"threads": args.threads},
    )
    print(f"{path}: {index['count']} blocks of {len(patients)} cases, {index['bytes'] / 1e6:,.1f} MB for {native / 1e6:,.1f} MB of voxels")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--case", type=case, action="append", default=[], metavar="CASE=PATIENT", help="a case of the shard and its patient's pseudonym"
    )
    parser.add_argument("--resampled", type=Path, required=True, help="folder with a subfolder per resampled case")
    parser.add_argument("--shard", type=shard, required=True, help="name of the shard, such as 00000-of-00004")
    parser.add_argument("--settings", type=parse_settings, required=True, help="JSON: channels and shard of the configuration")
    parser.add_argument("--threads", type=positive(int), default=1, help="blocks made ready at a time; they change no byte (default: 1)")
    parser.add_argument("--out", type=Path, required=True, help="folder for the shards")
    raise SystemExit(run_command(main, parser))
