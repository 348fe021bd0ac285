"""Every link of the documents leads somewhere, to a file and a heading that are there; every command is one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from cyclopts import App

from ups.cli.app import app

HOME = Path(__file__).parents[1]
PAGES = sorted([*HOME.glob("*.md"), *HOME.glob("docs/**/*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
COMMAND = re.compile(r"(?:^|`)(?:uv run )?ups ([a-z]+(?: [a-z]+)?)(?=[\s`])", re.MULTILINE)  # in a fence or in code
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    text = FENCE.sub("", page.read_text())
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: Path) -> Iterator[str]:
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):  # another site
            continue
        name, _, heading = target.partition("#")
        place = (page.parent / name).resolve() if name else page
        if not place.exists() or (heading and heading not in anchors(place)):
            yield f"{page.relative_to(HOME)}: {target}"


def test_every_link_leads_to_a_file_and_a_heading_that_are_there() -> None:
    assert len(PAGES) > 30
    assert [link for page in PAGES for link in broken(page)] == []


def commands(of: App, before: str = "") -> Iterator[str]:
    """All commands, those of groups with the name of the group."""
    for name in (name for name in of if not name.startswith("-")):
        yield f"{before}{name}"
        yield from commands(of[name], f"{before}{name} ")


def test_every_command_that_the_documents_name_is_one() -> None:
    known = {*commands(app), "sql"}  # that of the page on packages that add to this one
    groups = {name.split()[0] for name in known if " " in name}
    assert {"run", "data info"} <= known
    named = [(page.name, words) for page in PAGES for words in COMMAND.findall(page.read_text())]
    assert len(named) > 100
    wrong = [(page, words) for page, words in named if words.split()[0] not in known]
    pairs = [(page, words) for page, words in named if words.split()[0] in groups and " " in words]
    assert [*wrong, *((page, words) for page, words in pairs if words not in known)] == []
