"""The ledger: every artefact of a run with its content hash, and the job that made it."""

import os
from pathlib import Path
from typing import Any

from teravox import files, hashing, records
from teravox.errors import UserError


def ledger(root: Path, documents: list[Path]) -> dict[str, Any]:
    """Gather jobs and artefacts from the documents of a run and their run records.

    Returns {"jobs": [...], "artefacts": {path relative to root: {"content", "bytes", "job"}}}; a job has stage, document, the
    hash of its bytes, inputs, settings, seeds, versions, and from its run record the command, code hash, commit, machine,
    times, peak memory and what else it noted (threads, pinning). Raises UserError for a missing artefact.
    """
    jobs: list[dict[str, Any]] = []
    artefacts: dict[str, dict[str, Any]] = {}
    for path in documents:
        provenance = dict(files.read_json(path)["provenance"])
        produced = provenance.pop("artefacts")
        run = files.read_json(records.run_path(path))
        jobs.append({"document": str(path.relative_to(root)), "digest": hashing.file_digest(path), **provenance, "run": run})
        for name, content in produced.items():
            place = Path(os.path.normpath(path.parent / name))
            if not place.exists():
                raise UserError(f"{place}: missing, but {path} records it; delete {path} and run snakemake --cores all to make both again")
            artefacts[str(place.relative_to(os.path.normpath(root)))] = {"content": content, "bytes": place.stat().st_size, "job": len(jobs) - 1}
    return {"jobs": jobs, "artefacts": artefacts}
