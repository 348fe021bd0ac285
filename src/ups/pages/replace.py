"""Replacing one section of a page that is there, its contents and the numbers embedded in it; all else stays."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path

from jinja2.utils import htmlsafe_json_dumps

from ups.files import write_atomic
from ups.pages.page import Page, Section

SECTION = re.compile(r"<section\b.*?</section>", re.DOTALL)
CONTENTS = re.compile(r'(<nav aria-label="contents"><ol>\n).*?(</ol></nav>)', re.DOTALL)
HEAD = re.compile(r'<section id="([^"]*)">.*?<h2>(.*?)</h2>', re.DOTALL)
DATA = re.compile(r'(<script type="application/json" id="records">).*?(</script>)', re.DOTALL)


def replace_section(path: Path, title: str, section: Section | None, data: Sequence[object]) -> None:
    """Put `section` in the place of the one called `title`, or after the first where there is none; None takes it away.

    `data` are the rows that programs read from the page.
    """
    text = path.read_text()
    fresh = _rendered(section) if section is not None else ""
    there = [match for match in SECTION.finditer(text) if f">{escape(title)}</h2>" in match[0]]
    if there:
        text = text[: there[0].start()] + fresh + text[there[0].end() :].removeprefix("" if fresh else "\n")
    elif fresh and (first := SECTION.search(text)):
        text = f"{text[: first.end()]}\n{fresh}{text[first.end() :]}"
    entries = "".join(f'<li><a href="#{anchor}">{name}</a></li>\n' for anchor, name in HEAD.findall(text))
    text = CONTENTS.sub(lambda match: f"{match[1]}{entries}{match[2]}", text)
    text = DATA.sub(lambda match: f"{match[1]}{htmlsafe_json_dumps(list(data))}{match[2]}", text)
    write_atomic(path, text)


def _rendered(section: Section) -> str:
    """A section as a page renders it."""
    with tempfile.TemporaryDirectory() as folder:
        page = Page("", "", [section]).write(Path(folder) / "page.html").read_text()
    match = SECTION.search(page)
    assert match is not None
    return match[0]
