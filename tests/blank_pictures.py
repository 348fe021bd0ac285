"""Once this is imported, figures are made and not drawn: drawing is half of a short run."""

from __future__ import annotations

from typing import Any

from ups.pages import drawing


def blank(figure: Any) -> Any:
    """The canvas of a figure, with nothing on it."""
    canvas = drawing.library("backends.backend_agg").FigureCanvasAgg(figure)
    canvas.renderer = canvas.get_renderer()
    return canvas


drawn = drawing.drawn
drawing.drawn = blank
