"""The label of a machine: which job it is for, from which records, and when its lease is over."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import socket
from dataclasses import dataclass

from ups.types import ConfigError
from ups_fleet.submit.records import jobs_folder

PREFIX = "ups"
LONGEST = 48  # characters of a key in a label
OURS = re.compile(rf"{PREFIX}:([\w.-]{{1,{LONGEST - 9}}}-[0-9a-f]{{8}}):([0-9a-f]{{8}}):([0-9]{{10}})")
EARLIEST = 1_577_836_800  # 2020: no lease has ended before


@dataclass(frozen=True)
class Label:
    """What a machine says of itself to whoever finds it. `home`: which folder of records it belongs to; `until`: when
    its lease is over, by Vast's clock."""

    key: str
    home: str
    until: int

    def __str__(self) -> str:
        return f"{PREFIX}:{self.key}:{self.home}:{self.until}"

    @classmethod
    def of(cls, text: str) -> Label | None:
        """The label that a text is; None where it is none of ours: people write labels that begin alike."""
        match = OURS.fullmatch(text)
        return cls(match[1], match[2], int(match[3])) if match and int(match[3]) > EARLIEST else None


def short(key: str) -> str:
    """A key as labels hold it: a long one keeps its beginning and its end, which no other job has."""
    return key if len(key) <= LONGEST else f"{key[: LONGEST - 9]}{key[-9:]}"


def home() -> str:
    """Stands for the records of this user on this machine: another's jobs have no record here, and are no orphans."""
    words = f"{socket.gethostname()}:{os.getuid()}:{jobs_folder()}:{_folder_id()}"
    return hashlib.sha256(words.encode()).hexdigest()[:8]


def _folder_id() -> str:
    """A random word that the folder of records is given once: computers of one name are told apart by it."""
    path = jobs_folder() / "home"
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            draft = path.with_name(f".home-{os.getpid()}")
            draft.write_text(secrets.token_hex(8))
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)
            draft.unlink()
        return path.read_text(errors="replace").strip()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; set UPS_STATE to a folder of yours.") from None
