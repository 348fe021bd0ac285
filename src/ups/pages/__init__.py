"""Self-contained HTML pages: pictures, films with a slider, tables; nothing is fetched when a page opens."""

from ups.pages.charts import Curve, chart, film_forecast_lines, film_forecast_maps
from ups.pages.drawing import Film
from ups.pages.figures import film_lines, film_maps, space_time
from ups.pages.page import Page, Section

__all__ = [
    "Curve",
    "Film",
    "Page",
    "Section",
    "chart",
    "film_forecast_lines",
    "film_forecast_maps",
    "film_lines",
    "film_maps",
    "space_time",
]
