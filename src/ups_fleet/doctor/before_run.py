"""The quick doctor of a run: the checks of this machine that take milliseconds and decide whether it can end well."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from ups.run.config import RunConfig
from ups.types import ConfigError
from ups.verdict import FAILING, StorageError
from ups_fleet.doctor import machine_checks, package_checks
from ups_fleet.doctor.findings import Finding, State

# What a disk says that is full or failing: no mistake of the user.
DISK = [os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, *FAILING)]


def quick_doctor(config: RunConfig, folder: Path) -> Sequence[str]:
    """What is doubtful, in sentences; ConfigError for the first thing that is bad."""
    ranks = config.dist.ranks
    findings: dict[str, Finding] = {
        "packages": package_checks.required(),
        "cores": machine_checks.cores(ranks),
        "shared memory": machine_checks.shared_memory(ranks),
        "open files": machine_checks.descriptors(ranks),
        "file system": machine_checks.file_system(folder),
    }
    for name, finding in findings.items():
        if finding.state == State.BAD:
            sentence = f"doctor: {name}: {finding.found}; {finding.advice}"
            raise StorageError(sentence) if any(word in sentence for word in DISK) else ConfigError(sentence)
    return [f"doctor: {n}: {f.found}; {f.advice}" for n, f in findings.items() if f.state == State.DOUBTFUL]
