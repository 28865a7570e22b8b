"""What every layout makes of a data set: cases."""

import dataclasses
import re

from teravox.errors import UserError


@dataclasses.dataclass(frozen=True)
class Case:
    """One row: identifiers, one source path per channel (in channel order), the label's path, and `train` or `test`.

    stacked : the channels are the volumes, in order, of one 4D file; row : where the case was named, for messages
    ("config/cases.tsv row 3"); fault : why the case cannot be read, in one line, when its layout shows that already.
    """

    case: str
    patient: str
    images: dict[str, str]
    label: str
    set: str
    row: str
    stacked: bool = False
    fault: str = ""

    @property
    def sources(self) -> dict[str, str]:
        """Every source path by role: the channels' names, then `label`."""
        return {**self.images, "label": self.label}


def check_identifier(name: str, where: str) -> None:
    """Raises UserError unless a case's name can be a file's name everywhere."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise UserError(f"{where}: name {name[:80]!r} has other characters than letters, digits, _ and -, or none; rename the files")
