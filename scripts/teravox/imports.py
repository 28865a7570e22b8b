"""Which files of this library, and which installed packages, a command depends on.

Snakemake does not follow Python imports, so a rule lists these files as inputs and these versions as a parameter. Both are
found by reading the import statements, nested ones too; a test compares them with what Python really loads.
"""

import ast
import functools
import importlib.metadata
import os
import platform
import sys
from pathlib import Path

LIBRARY = Path(__file__).resolve().parent
# They show, watch, hash, name and compress: no number depends on them.
IMMATERIAL = {"tqdm", "psutil", "blake3", "ancpbids", "isal", "google_crc32c", "numcodecs"}
DISTRIBUTIONS = {"yaml": ["PyYAML"], "tensorflow": ["tensorflow-cpu", "tensorflow"]}


def _imported_names(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module] + [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def _library_paths(name: str) -> list[Path]:
    """The files that importing `teravox.a.b` runs: the packages on the way and the module; [] for what is no module."""
    path, found = LIBRARY, [LIBRARY / "__init__.py"]
    for part in name.split(".")[1:]:
        path = path / part
        if (path / "__init__.py").exists():
            found.append(path / "__init__.py")
        elif path.with_suffix(".py").exists():
            found.append(path.with_suffix(".py"))
        else:
            break
    return found


@functools.cache
def _dependencies(script: Path) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    waiting, files, packages = [script.resolve()], set(), set()
    while waiting:
        path = waiting.pop()
        if path in files:
            continue
        files.add(path)
        for name in _imported_names(path):
            top = name.split(".")[0]
            if top == LIBRARY.name:
                waiting += _library_paths(name)
            elif top not in sys.stdlib_module_names and top != "__future__":
                packages.add(top)
    return tuple(sorted(files)), tuple(sorted(packages))


def library_files(script: Path) -> list[Path]:
    """The script itself and every file of the library it imports, directly or not, sorted."""
    return list(_dependencies(Path(script))[0])


@functools.cache
def _version(package: str) -> str:
    for distribution in DISTRIBUTIONS.get(package, [package]):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "not installed"


def package_versions(script: Path) -> dict[str, str]:
    """Python's own version (major.minor) and that of every installed package the script imports, IMMATERIAL ones left out."""
    packages = {name: _version(name) for name in _dependencies(Path(script))[1] if name not in IMMATERIAL}
    return {"python": ".".join(platform.python_version_tuple()[:2]), **packages}


def put_own_python_first() -> None:
    """Make `python` in a child's shell the interpreter that runs now, whether or not its environment was activated."""
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
