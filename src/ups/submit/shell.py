"""What the scripts of all engines have in common, as text for a POSIX shell."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from ups.submit.job import Job
from ups.types import ConfigError


def quoted(words: Iterable[object]) -> str:
    """Words as a shell reads them back: none of them is a variable, a pattern or two words."""
    return " ".join(_quoted(str(word)) for word in words)


def checks(job: Job) -> str:
    """Lines that end a job in its first second where a node lacks what it needs: with a sentence, and code 2."""
    sentence = "is not there on $(hostname), and the run needs it; copy it there, or correct the config"
    lines = [
        f"cd {quoted([job.place])} 2>/dev/null || {{",
        f'    echo "ups: "{quoted([job.place])}": {sentence}." >&2; exit 2',
        "}",
    ]
    if job.inputs:
        lines += [
            f"for path in {quoted(job.inputs)}; do",
            '    [ -e "$path" ] || {',
            f'        echo "ups: $path: {sentence}." >&2; exit 2',
            "    }",
            "done",
        ]
    return "\n".join(lines)


def begun_or_resumed(job: Job) -> str:
    """Lines that put `--resume` into the positional parameters where the run has been begun."""
    return f"set --\n[ ! -e {quoted([job.folder / 'config.yaml'])} ] || set -- --resume"


def _quoted(word: str) -> str:
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in word):
        raise ConfigError(f"{word!r}: has a line break or a control character, which no script may hold; rename it.")
    return shlex.quote(word)
