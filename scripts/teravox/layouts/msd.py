"""A Medical Segmentation Decathlon folder."""

import re
from pathlib import Path
from typing import Any

from teravox.errors import UserError
from teravox.layouts.case import Case, check_identifier
from teravox.layouts.folder import first_fault, inside, read_description


def read(config: dict[str, Any]) -> list[Case]:
    """Read the training cases of a Medical Segmentation Decathlon folder; a case is its own patient. Raises UserError.

    dataset.json names images and labels relative to the folder; several modalities lie in one 4D file, whose volumes are the
    channels in their order. Entries of `test` have no label and are left out.
    """
    folder, channels = Path(config["dataset"]["path"]), [channel["name"] for channel in config["channels"]]
    path = folder / "dataset.json"
    description = read_description(folder, "dataset.json", "a Medical Segmentation Decathlon folder (link or unpack the download there)")
    try:
        modalities, training = len(description["modality"]), description["training"]
        pairs = [(str(entry["image"]), str(entry["label"])) for entry in training]
    except (KeyError, TypeError) as error:
        raise UserError(f"{path}: no list 'training' of image and label, or no 'modality' ({error}); expected the decathlon's format") from None
    if modalities != len(channels):
        raise UserError(f"{path}: names {modalities} modalities, expected {len(channels)} ('channels' of the configuration)")
    cases = []
    for number, pair in enumerate(pairs):
        row = f"{path} training[{number}]"
        image, label = (inside(folder, relative, row) for relative in pair)
        name = re.sub(r"\.nii(\.gz)?$", "", image.name)
        check_identifier(name, row)
        images = dict.fromkeys(channels, str(image))
        cases.append(Case(name, name, images, str(label), "train", row, len(channels) > 1, first_fault([image, label])))
    return cases
