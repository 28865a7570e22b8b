"""Predict one case with one model, or with the ensemble of several, on its isotropic grid and back on its own."""

import argparse
from pathlib import Path

import numpy as np
import SimpleITK as sitk

from teravox import files, geometry, model, normalise, numa, plan, store
from teravox.errors import UserError, parse_settings, run_command
from teravox.network import runtime
from teravox.network.unet import UNet
from teravox.prediction import probabilities, to_native
from teravox.records import Recorder


def main(args: argparse.Namespace) -> None:
    recorder = Recorder("predict", __file__)
    settings = args.settings
    ingested, resampled = files.read_json(args.ingested / "case.json"), files.read_json(args.resampled / "case.json")
    case, native = ingested["case"], ingested["grid"]
    trained = [model.load_model(folder) for folder in args.model]
    documents = [document for document, _ in trained]
    if any(document["network"] != documents[0]["network"] for document in documents):
        raise UserError(f"{args.model}: the models have different networks, expected folds of one run")
    for document, folder in zip(documents, args.model, strict=True):
        if case in document["training_cases"]:
            raise UserError(f"{folder}: was trained on case '{case}', expected a model that has not seen it")
    network = UNet(**documents[0]["network"])
    refused = plan.refusal(network, resampled["grid"]["shape"])
    if refused:
        raise UserError(f"predicting case '{case}' needs {refused}; use a coarser resample.spacing or fewer filters")
    need = plan.prediction_bytes(network, resampled["grid"]["shape"], native["shape"])
    numa.require_memory(need, f"predicting case '{case}'")
    facts = runtime.start(settings["predict"]["threads"])
    sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(settings["predict"]["threads"])

    image, grid = store.load(args.resampled / "image.nii", resampled)
    image = np.asarray(image).transpose(2, 1, 0, 3)
    images = [normalise.normalise(image, document["channels"], resampled["channels"], document["cohort"]) for document in documents]
    probability = probabilities(network, [weights for _, weights in trained], images).transpose(2, 1, 0, 3)

    values = [label["value"] for label in documents[0]["labels"]]
    dtype = store.label_dtype(values)
    on_grid = normalise.label_values(np.argmax(probability, axis=-1), values, dtype)
    affine, orientation = np.array(native["affine"]), np.array(ingested["orientation"])
    canonical = normalise.label_values(to_native(probability, grid, tuple(native["shape"]), affine), values, dtype)
    original = geometry.from_canonical(canonical, orientation)
    original_affine = geometry.native_affine(affine, orientation, original.shape)
    paths = args.out / f"{case}.nii.gz", args.out / f"{case}.grid.nii.gz"
    artefacts = {
        paths[0].name: store.write(paths[0], original, original_affine),
        paths[1].name: store.write(paths[1], on_grid, grid),
    }
    recorder.write(
        args.out / f"{case}.json",
        {"case": case, "models": [document["fold"] for document in documents]},
        artefacts=artefacts,
        inputs={
            f"resample/{case}/image.nii": resampled["provenance"]["artefacts"]["image.nii"],
            **{f"train/fold{document['fold']}/weights.npz": document["provenance"]["artefacts"]["weights.npz"] for document in documents},
        },
        settings=settings,
        run={**facts, "predicted_peak_bytes": need},
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, nargs="+", required=True, help="folder of a trained fold; several make an ensemble")
    parser.add_argument("--ingested", type=Path, required=True, help="folder of the ingested case")
    parser.add_argument("--resampled", type=Path, required=True, help="folder of the resampled case")
    parser.add_argument("--settings", type=parse_settings, required=True, help="JSON: labels and predict of the configuration")
    parser.add_argument("--out", type=Path, required=True, help="folder for the predictions")
    raise SystemExit(run_command(main, parser))
