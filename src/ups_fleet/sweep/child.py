"""A run of a sweep, `python -m ups_fleet.sweep.child PARENT COMMAND…`: it is asked to stop when PARENT dies."""

from __future__ import annotations

import os
import signal
import sys

from ups_fleet.supervise.rank_parent import die_with_parent

if __name__ == "__main__":
    die_with_parent(signal.SIGTERM, int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])  # what the kernel was asked for stays
