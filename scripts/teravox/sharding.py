"""Which shard a patient's cases are in: known before the workflow runs."""

from collections.abc import Mapping
from typing import Any

from teravox import hashing


def shard_of(patient: str, count: int) -> int:
    """The shard of a patient: a hash of its identifier in the case table, so that it does not change when other patients come
    or go, and is the same wherever the table is used. No key enters.
    """
    return int(hashing.text_digest(f"shard {patient}")[:15], 16) % count


def shard_name(number: int, count: int) -> str:
    """shard_name(3, 8) -> "00003-of-00008" """
    return f"{number:05d}-of-{count:05d}"


def shard_names(count: int) -> list[str]:
    """Every shard's name."""
    return [shard_name(number, count) for number in range(count)]


def cases_in(shard: str, count: int, cases: dict[str, dict[str, Any]], identifiers: Mapping[str, str]) -> list[str]:
    """The cases of one shard. cases : case -> its entry in split.json; those of the test set train nothing and are in no shard;
    identifiers : case -> its patient's identifier in the case table.
    """
    return [name for name, case in cases.items() if case["set"] == "train" and shard_name(shard_of(identifiers[name], count), count) == shard]
