"""READERS: every file format there is, by name; a path is read by the first that recognises it."""

from __future__ import annotations

from ups.data.readers import pdebench, well
from ups.data.source import Reader

READERS: dict[str, Reader] = {
    "well": well.READER,
    "pdebench": pdebench.READER,
}
