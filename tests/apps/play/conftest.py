"""Lets the tests of the page import the small service."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "serve"))
