"""Bars that also read well in a log."""

import sys
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm


def volumes(case: str, count: int) -> Any:
    """A bar over the volumes of a case, updated by shares of one; into a log it writes every ten seconds."""
    shape = "{l_bar}{bar}| {n:.2f}/{total:.0f} volumes [{elapsed}<{remaining}]"
    # A little more than the count: shares that sum up to it but for rounding are no more than all.
    return tqdm(desc=case, total=count + 1e-6, file=sys.stderr, mininterval=0.1 if sys.stderr.isatty() else 10, bar_format=shape)


def cases(names: Iterable[str], what: str) -> Any:
    """A bar that goes through cases."""
    return tqdm(list(names), desc=what, file=sys.stderr, mininterval=0.1 if sys.stderr.isatty() else 10, unit="case")
