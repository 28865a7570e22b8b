"""A trained model on disk: weights.npz and model.json, which says everything needed to use them."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from teravox import files, hashing
from teravox.errors import UserError


def save_weights(path: Path, weights: dict[str, np.ndarray]) -> str:
    """Write weights.npz; returns the content hash over names, shapes and values. The same weights give the same bytes."""
    with files.atomic(path) as temporary, temporary.open("wb") as stream:
        np.savez(stream, allow_pickle=False, **{name: weights[name] for name in sorted(weights)})
    return weights_digest(weights)


def weights_digest(weights: dict[str, np.ndarray]) -> str:
    """Content hash of a set of named weights."""
    return hashing.text_digest("\n".join(f"{name} {hashing.array_digest(weights[name])}" for name in sorted(weights)))


def load_model(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """model.json and the weights of a trained fold. Raises UserError when they do not belong together."""
    document = files.read_json(folder / "model.json")
    path = folder / "weights.npz"
    try:
        with np.load(path, allow_pickle=False) as stored:
            weights = {name: stored[name] for name in stored.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: not readable ({error}); train the fold again") from None
    if weights_digest(weights) != document["provenance"]["artefacts"]["weights.npz"]:
        raise UserError(f"{path}: the weights are not those that model.json records; train the fold again")
    return document, weights
