"""Self-contained HTML pages: pictures, films with a slider, tables; nothing is fetched when a page opens."""

from ups.pages.figures import Film, film_lines, film_maps, space_time
from ups.pages.page import Page, Section

__all__ = ["Film", "Page", "Section", "film_lines", "film_maps", "space_time"]
