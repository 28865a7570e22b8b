"""A copy of the repository's files, to run the workflow in."""

import shutil
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


def copy_repository(target: Path) -> None:
    """Every file that git tracks or would track, as it is in the working tree."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        if (REPOSITORY / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, target / name)
