"""Bars that also read well in a log."""

import sys
from typing import Any

from tqdm import tqdm


def volumes(case: str, count: int) -> Any:
    """A bar over the volumes of a case, updated by shares of one; into a log it writes every ten seconds."""
    shape = "{l_bar}{bar}| {n:.2f}/{total} volumes [{elapsed}<{remaining}]"
    return tqdm(desc=case, total=count, file=sys.stderr, mininterval=0.1 if sys.stderr.isatty() else 10, bar_format=shape)
