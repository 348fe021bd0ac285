"""Renders the page into one HTML file that needs nothing else, with the engine that is to answer it."""

from __future__ import annotations

from importlib import resources

import jinja2
from markupsafe import Markup

ON_A_SERVER = "startPage(serverEngine());"


def rendered(title: str, engine: str = ON_A_SERVER, nonce: str = "") -> str:
    """The page as HTML.

    Args:
        title: What stands above it, until the engine says its name.
        engine: JavaScript that ends in `startPage(engine)`; what an engine is stands at the top of `page.js`.
        nonce: What the content security policy of a server lets run; nothing where the page lies on a disk.
    """
    folder = resources.files("ups_apps.page")
    source, style, script = (folder.joinpath(f"page.{end}").read_text("utf-8") for end in ("html", "css", "js"))
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    # A script ends where its text says so, even inside a string.
    parts = {"css": style, "js": script, "engine": engine}
    parts = {name: Markup(text.replace("</script", "<\\/script")) for name, text in parts.items()}
    return environment.from_string(source).render(title=title, nonce=nonce, **parts)
