"""What a rented machine is given: code, as a commit on a public remote, and the script that it starts with."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from ups.types import ConfigError
from ups.version import __version__
from ups_fleet.submit.job import LaunchJob, Option
from ups_fleet.submit.shell import quoted
from ups_fleet.supervise.children import UnansweredError, ask

SSH = re.compile(r"(?:ssh://)?git@([\w.-]+)[:/](?!\d+/)(.+)")
LOGIN = re.compile(r"://[^/]*@|\?")  # also one of a query, such as ?private_token=…
REMOTE = re.compile(r"https?://|git://")
LOCAL_STORE = re.compile(r"(?:file|local|memory):|[^:]*$")
BASE = re.compile(r"""^base:\s*["']?([^"'\s#]+)""", re.MULTILINE)
MOST_BASES = 20
DATA = re.compile(r"[\w:/.@+=%~, -]*")
EXTRA, STORES = "[remote]", re.compile(r"\b(?:s3|hf|gs|az)://")
VARIABLES = {"s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "hf": ("HF_TOKEN",)}  # to write there
PACKAGE = "universal-physics-stack"
# As a machine sees a remote: no login, no question, no program of the repository's own settings.
ANYBODY = ("-c", "credential.helper=", "-c", "core.askPass=", "-c", "core.sshCommand=false")


def with_source(job: LaunchJob, data: str = "", store: str = "") -> LaunchJob:
    """The job with the address and the commit of its code; a ConfigError for what a rented machine would not find."""
    root = Path(_git(job.place, "rev-parse", "--show-toplevel", problem=f"{job.place} is in no git repository"))
    _check_clean(root)
    commit = _git(root, "rev-parse", "HEAD", problem=f"{root} has no commit")
    repo = _address(root)
    _check_pushed(root, repo, commit)
    _check_there(job, root, data)
    if not DATA.fullmatch(data):
        raise ConfigError(f"--data is '{data}', but must be what `ups data fetch` takes, with spaces between.")
    if store and LOCAL_STORE.match(store):
        raise ConfigError(f"sync is {store}, which a rented machine does not see; use a store as s3://bucket/runs.")
    if not store and job.folder.exists():
        remedy = "give it another --name, or a store (`sync`) from which machines go on"
        raise ConfigError(f"{job.folder}: is there, and a rented machine would begin anew beside it; {remedy}.")
    extra = EXTRA if store or STORES.search(f"{data} {_text(job)}") else ""
    ours = (root / "src" / "ups" / "__init__.py").is_file()
    options: dict[str, Option] = {
        "repo": repo,
        "commit": commit,
        "at": str(job.place.resolve().relative_to(root.resolve())),
        "config": _no_flag(os.path.relpath(job.config, job.place)),
        "package": f".{extra}" if ours else f"{PACKAGE}{extra}=={__version__}",
        "data": data,
        "store": store,
    }
    variables = tuple(dict.fromkeys((*job.variables, *VARIABLES.get(store.partition(":")[0], ()))))
    return replace(job, options={**job.options, **options}, variables=variables)


def _no_flag(path: str) -> str:
    """A relative path that no program takes for a flag."""
    return f"./{path}" if path.startswith("-") else path


def _check_clean(root: Path) -> None:
    changed = _git(root, "status", "--porcelain", "--untracked-files=no", problem=f"{root} cannot be read by git")
    if changed:
        names = ", ".join(line.split(maxsplit=1)[-1] for line in changed.splitlines()[:3])
        raise ConfigError(f"{root}: {names} differ from the last commit, which is what a machine gets; commit them.")


def _address(root: Path) -> str:
    """The address of the remote, as anybody can read it."""
    remotes = _git(root, "remote", problem=f"{root} cannot be read by git").split()
    if not remotes:
        raise ConfigError(f"{root}: has no remote, so a rented machine cannot get its code; add one and push.")
    name = "origin" if "origin" in remotes else remotes[0]
    address = _git(root, "remote", "get-url", name, problem=f"{root}: the remote {name} has no address")
    if match := SSH.fullmatch(address):
        address = f"https://{match[1]}/{match[2]}"
    if LOGIN.search(address):
        raise ConfigError(
            f"{root}: the address of its remote {name} holds a login, which others could read; remove it."
        )
    if not REMOTE.match(address):
        raise ConfigError(f"{root}: its remote is {address}, which a rented machine cannot reach; push to a server.")
    return address


def _check_pushed(root: Path, repo: str, commit: str) -> None:
    """A ConfigError where no branch of the remote holds the commit, as far as a machine without a login sees."""
    answer = _git(
        Path("/"), *ANYBODY, "ls-remote", repo, problem=f"{repo} cannot be read without a login, and a machine has none"
    )
    tips = {line.split()[0] for line in answer.splitlines() if line.strip()}
    if commit not in tips and not any(_holds(root, tip, commit) for tip in tips):
        raise ConfigError(f"{repo}: no branch there holds the commit {commit[:12]}; push it.")


def _holds(root: Path, tip: str, commit: str) -> bool:
    """Whether a commit is among the ancestors of another that is known here."""
    command = ["git", "-C", str(root), "merge-base", "--is-ancestor", commit, tip]
    return ask(command, 30.0).returncode == 0


def _check_there(job: LaunchJob, root: Path, data: str) -> None:
    """A ConfigError for files that the run reads and the commit does not hold."""
    for path in dict.fromkeys((*_with_bases(job.config), *job.inputs)):
        inside = path.resolve().is_relative_to(root.resolve())
        tracked = inside and _git(root, "ls-files", "--", str(path.resolve()), problem=f"{path} cannot be looked up")
        fetched = bool(data) and path != job.config and path.resolve().is_relative_to((job.place / "data").resolve())
        if not tracked and not fetched:
            remedy = "commit it, or name data that can be fetched (pdebench:…, well:…, s3://…, https://…)"
            raise ConfigError(f"{path}: is on this computer only, and a rented machine would not find it; {remedy}.")
    if str(root) in _text(job):
        raise ConfigError(f"{job.config}: names {root}, a folder of this computer; write relative paths.")


def _text(job: LaunchJob) -> str:
    """What the config and the flags of a job say."""
    return " ".join((job.config.read_text(errors="replace"), *(value for _, value in job.flags)))


def _with_bases(config: Path) -> list[Path]:
    """A config file and those that it is based on."""
    files = [config]
    while (match := BASE.search(files[-1].read_text(errors="replace"))) and len(files) < MOST_BASES:
        files.append(files[-1].parent / match[1])
    return files


def _git(folder: Path, *words: str, problem: str) -> str:
    """What git answers; a ConfigError that begins with `problem` where it does not."""
    command = ["git", "-C", str(folder), "--no-optional-locks", *words]
    apart = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "true", "GIT_CONFIG_NOSYSTEM": "1"}
    if words[0] == "-c":
        apart |= {"HOME": os.devnull, "XDG_CONFIG_HOME": os.devnull}
    try:
        done = ask(command, 60.0, env=apart)
    except (OSError, UnansweredError) as error:
        raise ConfigError(f"{problem} ({type(error).__name__}); a rented machine gets its code by git.") from None
    if done.returncode:
        reason = " ".join(done.stderr.split())[-160:]
        raise ConfigError(f"{problem} ({reason}); a rented machine gets its code by git.")
    return done.stdout.strip()


LONGEST = 4048  # characters: Vast takes no longer ones
REMARK = re.compile(r"^\s*#.*\n|\s{2}#\s.*$", re.MULTILINE)


def render(job: LaunchJob) -> str:
    """The script of a job: a pure function of it. It holds no secret; the machine has a key of its own."""
    options = job.options
    variables = {
        "JOB": job.key,
        "REPO": options["repo"],
        "COMMIT": options["commit"],
        "PLACE": options["at"],
        "PACKAGE": options["package"],
        "DATA": options.get("data", ""),
        "STORE": str(options.get("store", "")).rstrip("/"),
        "LEASE": f"{job.seconds:.0f}",
        "GRACE": f"{job.grace:.0f}",
    }
    lines = [f"{name}={quoted([value])}" for name, value in variables.items()]
    flags = [f"--{key}={value}" for key, value in job.flags if key != "out"]
    run = quoted([options["config"], f"--ranks={job.ranks}", *flags])
    script = "\n".join(["#!/bin/bash", f"# ups launch vast: {job.name}", *lines, f"RUN=({run})", body()])
    if len(script) > LONGEST:
        most = f"{len(script)} characters, and Vast takes {LONGEST}"
        raise ConfigError(f"the start script of {job.name} has {most}; put flags into the config.")
    return script


@cache
def body() -> str:
    """The text of start.sh without its remarks, and with half of its indentation."""
    text = REMARK.sub("", files(__package__).joinpath("start.sh").read_text())
    return re.sub(r"^ +", lambda indent: " " * (len(indent[0]) // 2), text, flags=re.MULTILINE)
