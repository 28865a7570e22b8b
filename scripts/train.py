"""Train one fold on whole volumes from the shards."""

import argparse
import contextlib
import csv
import os
import sys
import time
from pathlib import Path

import numpy as np
from tqdm import tqdm

from teravox import augment, files, geometry, hashing, model, normalise, numa, patches, plan, sharding
from teravox.errors import UserError, parse_settings, positive, run_command
from teravox.feed import Feed
from teravox.network import runtime
from teravox.network.unet import UNet
from teravox.records import Recorder, peak_rss_bytes
from teravox.shard_reader import ShardReader
from teravox.training import Trainer, train

COLUMNS = ("step", "case", "dice_loss", "cross_entropy", "learning_rate")


def main(args: argparse.Namespace) -> None:
    recorder = Recorder("train", __file__)
    settings = args.settings
    options, seed = settings["train"], settings["seed"]
    fingerprint = files.read_json(args.fingerprint)
    if fingerprint["fold"] != args.fold:
        raise UserError(f"{args.fingerprint}: is that of fold {fingerprint['fold']}, expected fold {args.fold}")
    prediction = plan.fold_plan(fingerprint, settings, args.prefetch_mb)
    if prediction["refused"]:
        raise UserError(f"fold {args.fold}: case '{prediction['largest_case']}' needs {prediction['refused']}; use a coarser grid or fewer filters")
    granted = numa.require_memory(prediction["predicted_peak_bytes"], f"training fold {args.fold}")
    placement = numa.placement()
    facts = runtime.start(options["threads"])
    print(f"{'pinned' if placement['pinned'] else 'NOT PINNED'}: {placement['reason']}")
    print(f"oneDNN on, {facts['threads']} threads on {facts['cores_allowed']} cores")

    cases = list(fingerprint["cases"])
    reader = ShardReader([args.shards / f"{name}.index.json" for name in sharding.shard_names(args.count)], args.check)
    reader.check_sizes(cases)
    reader.check_sources(fingerprint["cases"])
    if args.check == "size":
        print("shards: sizes were checked, CHECKSUMS ARE NOT (shard.check: size)")
    values = [label["value"] for label in settings["labels"]]
    network = UNet.of(settings)
    trainer = Trainer(network, options, seed)

    def transform(case: str, image: np.ndarray, label: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        place = reader.place(case)
        image = normalise.normalise(image, settings["channels"], place.entry["statistics"], fingerprint["channels"])
        classes = normalise.class_indices(label, values, settings["ignore_value"])
        image, classes = augment.augment(image, classes, geometry.spacing_of(place.affine)[::-1], options["augment"], rng)
        valid = np.array(classes.shape, np.int32)
        image, classes = (normalise.pad_to_multiple(array, network.multiple) for array in (image, classes))
        return image[None], classes[None].astype(np.int32), valid

    def part(case: str, rng: np.random.Generator) -> patches.Box:
        return patches.draw(reader, case, options["patch_size"], options["patch_foreground"], values, rng)

    feed = Feed(reader, cases, seed, args.fold, transform, trainer.signature[:3], part if options["patch_size"] else None)
    examples = feed.steps(feed.dataset(0, options["steps"], plan.example_bytes(network, prediction["shape"]), args.prefetch_mb * 1e6))
    started = time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    history = args.out / "history.csv"
    rows = train(trainer, examples)
    with contextlib.closing(examples), files.atomic(history) as temporary, temporary.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        bar = tqdm(rows, f"fold {args.fold}", options["steps"], file=sys.stderr, mininterval=1 if sys.stderr.isatty() else 10, unit="step")
        for row in bar:
            writer.writerow({**row, **{name: f"{row[name]:.7g}" for name in COLUMNS[2:]}})
            bar.set_postfix(dice_loss=f"{row['dice_loss']:.3f}", refresh=False)
    seconds = time.monotonic() - started

    digest = model.save_weights(args.out / "weights.npz", trainer.result())
    peak = peak_rss_bytes()
    recorder.write(
        args.out / "model.json",
        {
            "fold": args.fold,
            "network": {"channels": network.channels, "classes": network.classes, "filters": network.filters, "levels": network.levels},
            "parameters": network.parameters,
            "channels": settings["channels"],
            "labels": settings["labels"],
            "cohort": fingerprint["channels"],
            "training_cases": cases,
        },
        artefacts={"weights.npz": digest, "history.csv": hashing.text_digest(history.read_text())},
        inputs={f"resample/{case}/{name}": content for case in cases for name, content in fingerprint["cases"][case].items()},
        settings=settings,
        seeds={"train": seed},
        run={
            **facts,
            "pinning": placement,
            "predicted_peak_bytes": prediction["predicted_peak_bytes"],
            "memory_granted_bytes": granted,
            "shard_check": args.check,
            "prefetch_mb": args.prefetch_mb,
            "seconds_per_step": round(seconds / options["steps"], 4),
            "threads_per_core": round(options["threads"] / len(os.sched_getaffinity(0)), 2),
        },
    )
    print(f"peak memory {peak / 1e6:.0f} MB, predicted {prediction['predicted_peak_bytes'] / 1e6:.0f} MB; {seconds:.0f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fold", type=int, required=True, help="the fold that is not trained on")
    parser.add_argument("--fingerprint", type=Path, required=True, help="fingerprint of the fold: its training cases and their statistics")
    parser.add_argument("--shards", type=Path, required=True, help="folder of the shards")
    parser.add_argument("--count", type=int, required=True, help="number of shards")
    parser.add_argument("--check", choices=["checksum", "size"], default="checksum", help="shard.check of the configuration (default: checksum)")
    parser.add_argument(
        "--prefetch-mb", type=positive(float), default=16, help="examples made ready ahead of the training, MB; changes no value (default: 16)"
    )
    parser.add_argument(
        "--settings", type=parse_settings, required=True, help="JSON: seed, channels, labels, ignore_value and train of the configuration"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for weights.npz, history.csv and model.json")
    raise SystemExit(run_command(main, parser))
