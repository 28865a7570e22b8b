"""One class for everything that is the user's to mend, and the frame every command runs in."""

import argparse
import json
import signal
import sys
from collections.abc import Callable
from typing import Any

ENDINGS = (KeyboardInterrupt, SystemExit, GeneratorExit)  # of what derives from BaseException alone, only these are no errors: Rust's panics are


class UserError(Exception):
    """A user's mistake or a bad file. Its text is one line: file, what was found, what was expected, what to do."""


class RejectedCase(UserError):
    """A case whose data cannot be trusted: the run stops or leaves the case out, as `on_rejected` says."""


def one_line(text: str) -> str:
    """A message that any file can hold: a file's name may have line breaks, or bytes that are not UTF-8."""
    return " ".join(text.splitlines()).encode("utf-8", "backslashreplace").decode()


def parse_settings(text: str) -> dict[str, Any]:
    """The type of a command's --settings: a JSON object. argparse turns the error into one line."""
    try:
        settings = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"no JSON ({error})") from None
    if not isinstance(settings, dict):
        raise argparse.ArgumentTypeError(f"found {type(settings).__name__}, expected a JSON object")
    return settings


def positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    """The type of a command's argument: a finite number above 0."""

    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = 0
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"'{text}', expected a number above 0")
        return value

    return parse


def run_command(function: Callable[[argparse.Namespace], None], parser: argparse.ArgumentParser) -> int:
    """Parse the command line, run `function`, and turn a UserError into one line on standard error and exit status 1.

    So is what the file system refuses: no space, no permission, a file gone while it was in use; and Ctrl-C, with exit status 130.
    SIGTERM becomes an ordinary exit, so that temporary files are removed on the way out.
    """
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        function(args)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    return 0
