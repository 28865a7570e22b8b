"""A resampled case on disk, read plane by plane: never held or mapped whole."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from teravox import bulk, files, store
from teravox.bulk import Bulk
from teravox.errors import UserError


@dataclasses.dataclass(frozen=True)
class Resampled:
    """document : its case.json; image : (x, y, z, c) and label : (x, y, z), as open files."""

    document: dict[str, Any]
    image: Bulk
    label: Bulk

    def image_planes(self, first: int, last: int) -> np.ndarray:
        """Planes [first, last): (z, y, x, c), C order."""
        height, channels = self.image.shape[1], self.image.shape[3]
        if channels == 1:
            return self.image.read(first, last, 0, height)[..., None]
        out = np.empty((last - first, height, self.image.shape[0], channels), self.image.dtype)
        for channel in range(channels):
            out[..., channel] = self.image.read(first, last, 0, height, channel)
        return out

    def label_planes(self, first: int, last: int) -> np.ndarray:
        """Planes [first, last): (z, y, x)."""
        return self.label.read(first, last, 0, self.label.shape[1])

    def about(self, patient: str, channels: list[str]) -> dict[str, Any]:
        """What shards say of the case: see `shard_writer.Volume`. patient : its pseudonym."""
        x, y, z, c = self.image.shape
        return {
            "patient": patient,
            "shape": [z, y, x, c],
            "affine": self.image.affine.tolist(),
            "channels": channels,
            "image_dtype": self.image.dtype.newbyteorder("<").str,
            "label_dtype": self.label.dtype.newbyteorder("<").str,
            "statistics": self.document["channels"],
            "volumes": self.document["provenance"]["artefacts"],
        }


@contextlib.contextmanager
def opened(folder: Path, channels: list[str]) -> Iterator[Resampled]:
    """The case of a folder with case.json, image.nii and label.nii. Raises UserError when they do not fit each other."""
    document = files.read_json(folder / "case.json")
    try:
        known, artefacts = set(document["channels"]), document["provenance"]["artefacts"]
        readable = known == set(channels) and set(artefacts) == {"image.nii", "label.nii"} and document["provenance"]["stage"] == "resample"
    except (AttributeError, IndexError, KeyError, TypeError):
        readable = False
    if not readable:
        raise UserError(f"{folder / 'case.json'}: is not that of a resampled case with channels {', '.join(channels)}; run snakemake --cores all")
    with contextlib.ExitStack() as stack:
        found = {}
        for name in ("image", "label"):
            with store.guarded(folder / f"{name}.nii", document):
                found[name] = stack.enter_context(bulk.opened(folder / f"{name}.nii"))
        image, label = found["image"], found["label"]
        if not np.array_equal(image.affine, label.affine):
            raise UserError(f"{folder}: image.nii and label.nii have different affines; run snakemake --cores all --forcerun resample_case")
        if len(image.shape) != 4 or image.shape[3] != len(channels) or image.shape[:3] != label.shape:
            raise UserError(
                f"{folder}: image.nii is {image.shape} and label.nii {label.shape}, expected one grid and {len(channels)} channels; "
                "run snakemake --cores all --forcerun resample_case"
            )
        yield Resampled(document, image, label)


def check(folder: Path, case: Resampled) -> None:
    """Raises UserError unless image and label have the content hashes that case.json records."""
    for name, volume in (("image", case.image), ("label", case.label)):
        path = folder / f"{name}.nii"
        with store.guarded(path, case.document):
            digest = volume.digest()
        store.check_digest(path, digest, case.document)
