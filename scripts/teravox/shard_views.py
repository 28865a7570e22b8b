"""What shards hold, as text, and a case of them as NIfTI."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from teravox import bulk, files, geometry
from teravox.errors import UserError
from teravox.shard_reader import Place, ShardReader
from teravox.shards import shard_path

EXTRACTED_BYTES = 64e6  # at a time


def indexes_of(paths: list[Path]) -> list[Path]:
    """The indexes in folders, and those that are named, or whose shard is. Raises UserError when there is none, or a shard without."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(path.glob("[!.]*.index.json"))
            for shard in sorted(path.glob("[!.]*.tfrecord")):
                if not shard.with_suffix(".index.json").exists():
                    raise UserError(f"{shard}: has no index beside it; run snakemake --cores all --forcerun write_shard")
        elif path.suffix == ".tfrecord" or path.name.endswith(".index.json"):
            found.append(path.with_suffix(".index.json") if path.suffix == ".tfrecord" else path)
        else:
            raise UserError(f"{path}: {'is no shard' if path.exists() else 'missing'}, expected a folder of shards, *.tfrecord or *.index.json")
    found = list(dict.fromkeys(path.resolve() if path.parent == Path() else path for path in found))
    if not found:
        raise UserError(f"{paths[0]}: holds no shard, expected *.tfrecord with *.index.json, as in results/shards")
    return found


def _spacing(place: Place) -> str:
    return " x ".join(f"{edge:.4g}" for edge in geometry.spacing_of(place.affine))


def _types(place: Place) -> tuple[str, str]:
    return np.dtype(place.entry["image_dtype"]).name, np.dtype(place.entry["label_dtype"]).name


def listing(indexes: list[Path]) -> Iterator[str]:
    """A table of all cases of shards."""
    rows: list[tuple[str, ...]] = [("shard", "case", "patient", "shape x,y,z", "spacing mm", "channels", "types", "blocks", "MB")]
    for path in indexes:
        name, reader = shard_path(path).stem, ShardReader([path])
        for case, place in reader.places.items():
            z, y, x, _ = place.entry["shape"]
            size = sum(record["length"] for record in place.records) / 1e6
            about = f"{x},{y},{z}", _spacing(place), ",".join(place.entry["channels"]), ", ".join(_types(place))
            rows.append((name, case, place.entry["patient"], *about, str(len(place.records)), f"{size:,.1f}"))
        if not reader.places:
            rows.append((name, "no case", *[""] * 7))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def description(reader: ShardReader, case: str) -> Iterator[str]:
    """All that the index knows of a case."""
    place = reader.place(case)
    z, y, x, c = place.entry["shape"]
    image_type, label_type = _types(place)
    yield f"case {case}, patient {place.entry['patient']}, in {place.path}"
    yield f"{x} x {y} x {z} voxels (x, y, z) of {_spacing(place)} mm, {c} {'channel' if c == 1 else 'channels'}, compression {place.codec}"
    yield "affine, index (x, y, z) to RAS+ mm:"
    yield from ("  " + " ".join(f"{value:12.6g}" for value in row) for row in place.affine)
    yield f"image, {image_type}:"
    for name in place.entry["channels"]:
        values = place.entry["statistics"][name].items()
        yield f"  {name}: " + ", ".join(f"{key} {value:.6g}" if isinstance(value, float) else f"{key} {value}" for key, value in values)
    counts = Counter[int]()
    for record in place.records:
        counts.update({int(value): count for value, count in record["label_voxels"].items()})
    yield f"label, {label_type}: " + (", ".join(f"value {value} in {counts[value]} voxels" for value in sorted(counts)) or "empty")
    yield "block  planes        offset         length         SHA-256"
    for record in place.records:
        planes = f"{record['extent'][0]}:{record['extent'][1]}"
        yield f"{record['block']:<5}  {planes:12}  {record['offset']:<13}  {record['length']:<13}  {record['sha256']}"


def extract(reader: ShardReader, case: str, planes: tuple[int, int] | None, out: Path) -> dict[str, str]:
    """Write planes [first, last) of a case, or all, to image.nii and label.nii in a folder. Returns their content hashes.

    A whole case must have the content hashes that its volumes had before they went into the shard; raises UserError if not.
    """
    place = reader.place(case)
    z, y, x, c = place.entry["shape"]
    first, last = planes or (0, z)
    if not 0 <= first < last <= z:
        raise UserError(f"{place.path}: case '{case}' has planes 0:{z}, asked for {first}:{last}")
    out.mkdir(parents=True, exist_ok=True)
    types = {name: np.dtype(place.entry[f"{name}_dtype"]) for name in ("image", "label")}
    voxel = types["image"].itemsize * c + types["label"].itemsize
    files.require_space(out, x * y * (last - first) * voxel, f"case '{case}'")
    step = max(1, int(EXTRACTED_BYTES // (x * y * voxel)))
    affine = geometry.window_of(place.affine, np.array([0, 0, first]))
    with files.atomic(out / "image.nii") as image_path, files.atomic(out / "label.nii") as label_path:
        with (
            bulk.create(image_path, (x, y, last - first, c), types["image"], affine) as image,
            bulk.create(label_path, (x, y, last - first), types["label"], affine) as label,
        ):
            for begin in range(first, last, step):
                voxels, classes = reader.load(case, begin, min(begin + step, last))
                for channel in range(c):
                    image.write(np.ascontiguousarray(voxels[..., channel]), begin - first, 0, channel)
                label.write(classes, begin - first, 0)
            digests = {"image.nii": image.digest(), "label.nii": label.digest()}
        if last - first == z:
            for name, digest in digests.items():
                if digest != place.entry["volumes"][name]:
                    raise UserError(f"{place.path}: {name} of case '{case}' comes out with another content hash than it went in with")
    return digests
