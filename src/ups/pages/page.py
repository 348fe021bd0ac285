"""A page: a title, sections with text, tables, pictures and films, rendered to one HTML file."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import jinja2

from ups.files import write_atomic
from ups.pages.drawing import Film
from ups.types import Table


@dataclass
class Section:
    """A headed part of a page. `table` has its header first; `verdict` is shown green (good) or red.

    `code` is shown as it is, letter by letter; a `folded` section shows its title until it is clicked.
    """

    title: str
    text: str = ""
    table: Table = ()
    pictures: list[tuple[str, str]] = field(default_factory=list)
    films: list[Film] = field(default_factory=list)
    verdict: str = ""
    good: bool = True
    code: str = ""
    folded: bool = False

    @property
    def anchor(self) -> str:
        """Its name in links within the page."""
        return "-".join(re.findall(r"\w+", self.title.lower())) or "section"


@dataclass
class Page:
    """What a reader opens: one file, no network."""

    title: str
    lead: str
    sections: list[Section] = field(default_factory=list)
    foot: str = ""
    data: object = None  # embedded as JSON in an element with the id `data`, for programs that read the page

    def write(self, path: Path) -> Path:
        """Render to `path`; a page that is there is replaced in one step."""
        source = resources.files("ups.pages").joinpath("page.html").read_text()
        environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
        text = environment.from_string(source).render(page=self)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text)
        return path
