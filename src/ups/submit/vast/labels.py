"""The label of a machine: which job it is for, from which records, and when its lease is over."""

from __future__ import annotations

import hashlib
import os
import re
import socket
from dataclasses import dataclass

from ups.submit.records import jobs_folder

PREFIX = "ups"
LONGEST = 48  # characters of a key in a label


@dataclass(frozen=True)
class Label:
    """What a machine says of itself to whoever finds it. `home`: which folder of records it belongs to."""

    key: str
    home: str
    until: int

    def __str__(self) -> str:
        return f"{PREFIX}:{self.key}:{self.home}:{self.until}"

    @classmethod
    def of(cls, text: str) -> Label | None:
        """The label that a text is; None where it is none of ours."""
        words = text.split(":")
        if len(words) != 4 or words[0] != PREFIX or not re.fullmatch(r"[0-9]{1,12}", words[3]):
            return None
        return cls(words[1], words[2], int(words[3]))


def short(key: str) -> str:
    """A key as labels hold it: a long one keeps its beginning and its end, which no other job has."""
    return key if len(key) <= LONGEST else f"{key[: LONGEST - 9]}{key[-9:]}"


def home() -> str:
    """Stands for the records of this user on this machine: another's jobs have no record here, and are no orphans."""
    return hashlib.sha256(f"{socket.gethostname()}:{os.getuid()}:{jobs_folder()}".encode()).hexdigest()[:8]
