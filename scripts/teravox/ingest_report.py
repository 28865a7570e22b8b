"""The verdicts of ingestion as a table and as one page: what can be used, what was changed, and what has to be mended."""

import io
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import image as png

from teravox import files, geometry, hashing, pages, planes, store

VERDICTS = ("rejected", "corrected", "ok")  # in the order of the page: what has to be mended first
COLUMNS = ("case", "role", "case_verdict", "verdict", "reason", "corrections", "notes", "format", "shape", "spacing_mm", "files_skipped")
PICTURE_BYTES = 24_000_000  # voxels of a case that are read for its pictures: unpacking and checking them takes about 0.2 s
PICTURE_PIXELS = 96  # longest side; a page of 1000 cases with 4 channels then has about 30 MB


def roles(case: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What the document of a case says of each channel, in the order of the configuration, and of the label; {} when it was not read."""
    found = {**case.get("channels", {}), "label": case.get("label", {})}
    return {role: found.get(role, {}) for role in (*(channel["name"] for channel in case["provenance"]["settings"]["channels"]), "label")}


def one_cell(values: list[str]) -> str:
    """Lines as one cell of a tab-separated table: a path may hold a tab."""
    return "; ".join(" ".join(value.split()) for value in values)


def table(cases: list[dict[str, Any]]) -> str:
    """verdicts.tsv: one row per case and role, in the order of the cases. The verdict of a role that was not read is empty."""
    lines = ["\t".join(COLUMNS)]
    for case in cases:
        for role, found in roles(case).items():
            row = {
                "case": case["case"],
                "role": role,
                "case_verdict": case["verdict"],
                "verdict": found.get("verdict", ""),
                "reason": one_cell([case["reason"] or ""]),
                "corrections": one_cell(found.get("corrections", [])),
                "notes": one_cell(found.get("notes", [])),
                "format": found.get("format", ""),
                "shape": "x".join(map(str, grid_of(case, role)["shape"])) if "grid" in case else "",
                "spacing_mm": "x".join(f"{edge:.4g}" for edge in geometry.spacing_of(grid_of(case, role)["affine"])) if "grid" in case else "",
                "files_skipped": str(sum(file["role"] == role for file in skipped(case))),
            }
            lines.append("\t".join(row[name] for name in COLUMNS))
    return "\n".join(lines) + "\n"


def grid_of(case: dict[str, Any], role: str) -> dict[str, Any]:
    """Shape and affine of a role of an accepted case; the label's is that of the first channel."""
    return case["channels"].get(role, case)["grid"]


def skipped(case: dict[str, Any]) -> list[dict[str, Any]]:
    return [file for file in case.get("files", []) if file["status"] == "skipped"]


def kind_of(reason: str) -> str:
    """What a reason has in common with those of other cases: without file, numbers and what was expected."""
    text = re.split(r"[,;([]", reason.partition(": ")[2] or reason)[0]
    text = re.sub(r"\S*/\S*", "…", text)
    return re.sub(r"(?<![A-Za-z])-?\d+(\.\d+)?(e-?\d+)?", "N", text).strip()


def picture(volume: np.ndarray, affine: np.ndarray) -> dict[str, Any]:
    """The middle axial plane of a volume (x, y, z) in RAS order, affine (4, 4) in mm: PNG as text, width and height on the page.

    Every k-th voxel is shown, so that it has at most PICTURE_PIXELS a side. Radiological convention: the patient's right is on the left.
    """
    x, y, z = (n // 2 for n in volume.shape)
    plane = planes.planes_of(volume, (x, y, z))[0]
    across, down = (n * edge for n, edge in zip(volume.shape[:2], geometry.spacing_of(affine)[:2], strict=True))
    step = -(-max(plane.shape) // PICTURE_PIXELS)
    low, high = planes.window_of([plane])
    stream = io.BytesIO()
    png.imsave(stream, plane[::step, ::step], cmap="gray", vmin=low, vmax=high, format="png", metadata={"Software": None})  # type: ignore[dict-item]
    scale = PICTURE_PIXELS / max(across, down)
    return {"data": pages.encoded(stream.getvalue()), "width": round(across * scale), "height": round(down * scale)}


def pictures(folder: Path, case: dict[str, Any]) -> list[dict[str, Any]]:
    """One picture per channel of an accepted case, as many as PICTURE_BYTES allow. Raises UserError for a damaged volume."""
    found, left = [], PICTURE_BYTES
    for name, channel in roles(case).items():
        if name == "label" or case["verdict"] == "rejected":
            continue
        left -= math.prod(channel["grid"]["shape"]) * np.dtype(channel["dtype"]).itemsize
        if left >= 0:
            found.append({"name": name, **picture(*store.load(folder / f"{name}.nii.gz", case))})
    return found


def row(folder: Path, case: dict[str, Any]) -> dict[str, Any]:
    """A case as a row of the page."""
    found = roles(case)
    formats = Counter(part["format"] for part in found.values() if "format" in part)
    return {
        "name": case["case"],
        "verdict": case["verdict"],
        "reason": case["reason"] or "",
        "corrections": [f"{role}: {line}" for role, part in found.items() for line in part.get("corrections", [])],
        "notes": [f"{role}: {line}" for role, part in found.items() for line in part.get("notes", [])],
        "spacing": " × ".join(f"{edge:.4g}" for edge in case.get("spacing_mm", [])),
        "shape": " × ".join(map(str, case["grid"]["shape"])) if "grid" in case else "",
        "formats": ", ".join(f"{count} {name}" for name, count in sorted(formats.items())),
        "pictures": pictures(folder, case),
    }


def skipped_rows(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Skipped files, those of one case, role and reason together."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for case in cases:
        for file in skipped(case):
            groups.setdefault((case["case"], file["role"], file["reason"]), []).append(file["file"])
    return [{"case": case, "role": role, "reason": reason, "files": ", ".join(names)} for (case, role, reason), names in groups.items()]


def render(root: Path, cases: list[dict[str, Any]], on_rejected: str) -> str:
    """The page as HTML. root : the folder with a subfolder per case; cases : their documents; on_rejected : as in the configuration."""
    counts = Counter(case["verdict"] for case in cases)
    kinds = Counter(kind_of(case["reason"]) for case in cases if case["verdict"] == "rejected")
    settings = Counter(hashing.text_digest(files.canonical_json(case["provenance"]["settings"])) for case in cases)
    return pages.render(
        "ingest_report.html.j2",
        count=len(cases),
        tiles=[{"name": verdict, "value": counts[verdict]} for verdict in reversed(VERDICTS)],
        rejected=counts["rejected"],
        on_rejected=on_rejected,
        kinds=sorted(kinds.items(), key=lambda item: (-item[1], item[0])),
        cases=[row(root / case["case"], case) for case in sorted(cases, key=lambda case: (VERDICTS.index(case["verdict"]), case["case"]))],
        skipped=skipped_rows(cases),
        settings=sorted(settings.items()),
        limit_mb=PICTURE_BYTES // 10**6,
    )
