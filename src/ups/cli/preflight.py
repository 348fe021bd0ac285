"""What `ups run` looks at before the first step: a quick doctor, and whether the run fits in memory and on the disk."""

from __future__ import annotations

from ups.jobs.estimate.fits import quick_estimate
from ups.run.preflight import Preflight
from ups.wings import look

PREFLIGHT = Preflight(look, quick_estimate)
