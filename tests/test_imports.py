"""What a command imports, read from its source, against what Python loads."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from teravox import imports

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
COMMANDS = sorted(path.stem for path in SCRIPTS.glob("*.py"))

# Runs in one process, so that TensorFlow is started once: each command is run as a module of another name, and what it loaded
# of the library is forgotten before the next. Top-level names are seen through __import__, when library code asks for them.
WATCH = """
import builtins, json, pathlib, runpy, sys
scripts = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(scripts))
original, asked = builtins.__import__, set()
def watched(name, globals=None, locals=None, fromlist=(), level=0):
    source = (globals or {}).get("__file__") or ""
    if not level and source.startswith(str(scripts)):
        asked.add(name.split(".")[0])
    return original(name, globals, locals, fromlist, level)
builtins.__import__ = watched
found = {}
for command in sys.argv[2:]:
    asked.clear()
    runpy.run_path(str(scripts / f"{command}.py"), run_name="loaded")
    loaded = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "teravox"}
    found[command] = [sorted(str(module.__file__) for module in loaded.values()), sorted(asked - {"teravox"})]
    for name in loaded:
        del sys.modules[name]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def loaded() -> dict[str, tuple[list[str], list[str]]]:
    done = subprocess.run([sys.executable, "-c", WATCH, str(SCRIPTS), *COMMANDS], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("command", COMMANDS)
def test_the_files_are_those_that_python_loads(loaded: dict[str, tuple[list[str], list[str]]], command: str) -> None:
    script = SCRIPTS / f"{command}.py"
    assert [str(path) for path in imports.library_files(script)] == sorted([*loaded[command][0], str(script)])


@pytest.mark.parametrize("command", COMMANDS)
def test_the_packages_are_those_that_the_library_asks_for(loaded: dict[str, tuple[list[str], list[str]]], command: str) -> None:
    outside = {name for name in loaded[command][1] if name not in sys.stdlib_module_names}
    versions = imports.package_versions(SCRIPTS / f"{command}.py")
    assert set(versions) == (outside - imports.IMMATERIAL) | {"python"}
    assert "not installed" not in versions.values()


def test_nested_imports_and_packages_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "teravox"
    (library / "deep").mkdir(parents=True)
    for name, text in {
        "__init__": "",
        "a": "def f():\n    from teravox.deep import b\n",
        "deep/__init__": "import json\n",
        "deep/b": "import numpy.linalg\nif True:\n    import teravox.c as c\n",
        "c": "from teravox import a\n",
        "unused": "",
    }.items():
        (library / f"{name}.py").write_text(text)
    script = tmp_path / "script.py"
    script.write_text("from __future__ import annotations\nfrom teravox import a\n")
    monkeypatch.setattr(imports, "LIBRARY", library)
    names = [str(path.relative_to(tmp_path)) for path in imports.library_files(script)]
    assert names == ["script.py", *(f"teravox/{name}.py" for name in ("__init__", "a", "c", "deep/__init__", "deep/b"))]
    import numpy as np

    assert imports.package_versions(script) == {"python": f"{sys.version_info.major}.{sys.version_info.minor}", "numpy": np.__version__}


def test_own_python_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    imports.put_own_python_first()
    import os

    assert os.environ["PATH"].split(os.pathsep) == [str(Path(sys.executable).parent), "/usr/bin"]
