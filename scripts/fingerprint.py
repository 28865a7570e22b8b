"""Intensity statistics of one fold's training cases."""

import argparse
from pathlib import Path

from teravox import files, hashing, split, store
from teravox import fingerprint as stage
from teravox.errors import parse_settings, run_command
from teravox.records import Recorder


def main(args: argparse.Namespace) -> None:
    recorder = Recorder("fingerprint", __file__)
    settings = args.settings
    names = split.training_cases(files.read_json(args.split), args.fold)
    documents = {name: files.read_json(args.resampled / name / "case.json") for name in names}
    channels = [channel["name"] for channel in settings["channels"]]
    pairs = (
        (store.load(args.resampled / name / "image.nii", document)[0], store.load(args.resampled / name / "label.nii", document)[0])
        for name, document in documents.items()
    )
    found = stage.fingerprint(pairs, channels, settings["ignore_value"])
    recorder.write(
        args.out,
        {
            "fold": args.fold,
            "channels": found,
            "shapes": {name: documents[name]["grid"]["shape"] for name in names},
            "cases": {name: documents[name]["provenance"]["artefacts"] for name in names},
        },
        artefacts={args.out.name: hashing.text_digest(files.canonical_json(found))},
        inputs={f"resample/{name}/{file}": content for name in names for file, content in documents[name]["provenance"]["artefacts"].items()},
        settings=settings,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--split", type=Path, required=True, help="split.json")
    parser.add_argument("--fold", type=int, required=True, help="the fold; its own cases and the test set are left out")
    parser.add_argument("--resampled", type=Path, required=True, help="folder with a subfolder per resampled case")
    parser.add_argument("--settings", type=parse_settings, required=True, help="JSON: channels, labels and ignore_value of the configuration")
    parser.add_argument("--out", type=Path, required=True, help="fingerprint JSON")
    raise SystemExit(run_command(main, parser))
