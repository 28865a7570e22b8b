"""Where the documents of a run stand, in the order in which the stages make them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from teravox import files, sharding, split


def documents(root: Path, folds: list[int], shard_count: int) -> Iterator[Path]:
    """Every document (deterministic JSON with a provenance block) of a run under `root`, from its split.json."""
    assigned: dict[str, Any] = files.read_json(root / "split.json")
    accepted, scored = list(assigned["cases"]), split.scored_cases(assigned, folds)
    for case in sorted([*accepted, *assigned["excluded"]]):
        yield root / "ingest" / case / "case.json"
    yield root / "split.json"
    yield from (root / "resample" / case / "case.json" for case in accepted)
    yield from (root / "fingerprint" / f"fold{fold}.json" for fold in folds)
    yield from (root / "shards" / f"{name}.index.json" for name in sharding.shard_names(shard_count))
    yield root / "plan.json"
    yield from (root / "train" / f"fold{fold}" / "model.json" for fold in folds)
    yield from (root / "predict" / f"{case}.json" for case in scored)
    yield from (root / "evaluation" / "cases" / f"{case}.json" for case in scored)
    yield root / "evaluation" / "summary.json"
