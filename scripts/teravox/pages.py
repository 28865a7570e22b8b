"""Pages that open offline: templates filled in, pictures inside."""

import base64
from pathlib import Path
from typing import Any

import jinja2

FOLDER = Path(__file__).parent  # templates stand beside the modules that fill them in


def render(template: str, **values: Any) -> str:
    """The page as HTML. template : its file name; a value that is missing is an error, and text is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER), autoescape=True, undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    return environment.get_template(template).render(**values)


def encoded(data: bytes) -> str:
    """A picture's bytes for a data: address."""
    return base64.b64encode(data).decode()
