"""Every link of the documents leads somewhere: to a file that is there, and to a heading that it has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

HOME = Path(__file__).parents[1]
PAGES = sorted([*HOME.glob("*.md"), *HOME.glob("docs/**/*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
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
