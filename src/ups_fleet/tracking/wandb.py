"""`wandb`: Weights & Biases, online where there is a login, else as files for `wandb sync` in the run's folder."""

from __future__ import annotations

import errno
import netrc
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ups.types import ConfigError
from ups_fleet.tracking.log_reader import WHOLE_RUN, LogRow
from ups_fleet.tracking.mirror import Mirror, RunEnding, shortage
from ups_fleet.tracking.settings import TrackingConfig

# W&B would keep a log of its own in the home folder, and lay a link to it into the run's, which has no links.
NOWHERE = "/dev/null/none"


@dataclass
class Wandb(Mirror):
    """One run of W&B, found again by the run's own id. Its step is the number of the log's line; curves are drawn over
    the step of their stage, `<stage>/step`.

    Online, what the server has is the truth: a resumed run of W&B says how many lines it holds. Offline, W&B has no
    memory, so a whole new folder replaces that of an earlier process.
    """

    run: Any = None
    first: int = 0  # the line that the server lacks
    old: list[Path] = field(default_factory=list)
    stages: set[str] = field(default_factory=set)
    offline: bool = False
    name = "wandb"
    package = "wandb"

    @classmethod
    def require(cls, settings: TrackingConfig, say: Callable[[str], None]) -> None:
        super().require(settings, say)
        wanted = wanted_mode(settings)
        if wanted == "online" and not has_login():
            raise ConfigError(
                f"tracking.mode is online, and there is no login for W&B at {host()}; run `wandb login`, set "
                "WANDB_API_KEY, or leave the mode out."
            )
        if wanted == "auto" and not has_login():
            say(
                f"wandb: there is no login for {host()}, so the run is kept offline; `wandb login` and then "
                "`wandb sync RUN/wandb/offline-run-*` send it."
            )

    def open(self) -> None:
        facts, settings = self.facts, self.facts.settings
        os.environ["WANDB_CACHE_DIR"] = NOWHERE
        library = import_module("wandb")
        offline = wanted_mode(settings) == "offline" or not has_login()
        place = facts.folder / "wandb"
        self.old = sorted(place.glob(f"offline-run-*-{facts.id}")) if offline else []
        self._wait_for_a_name(self.old)
        owned = facts.owner != 0
        quiet = library.Settings(
            symlink=False,  # a run's folder has no links
            console="off",
            silent=True,
            save_code=False,
            disable_code=True,
            disable_git=True,  # environment.json says the commit, and asks git with more care
            x_disable_stats=not owned,
            **({"x_stats_pid": facts.owner} if owned else {}),
        )
        self.run = library.init(
            dir=str(facts.folder),
            id=facts.id,
            entity=settings.entity,
            project=settings.project,
            name=facts.name,
            group=settings.group,
            job_type=settings.job_type,
            tags=list(settings.tags),
            notes=settings.notes or None,
            config={**facts.config, "environment": facts.environment},
            mode="offline" if offline else "online",
            resume=None if offline else "allow",
            settings=quiet,
        )
        self.offline, self.first = offline, 0 if offline else self.run.starting_step

    def send(self, rows: Sequence[LogRow]) -> None:
        self._require_room()
        for row in rows:
            if row.number < self.first:
                continue
            if row.stage not in self.stages and row.stage != WHOLE_RUN:
                self.run.define_metric(f"{row.stage}/*", step_metric=f"{row.stage}/step")
                self.stages.add(row.stage)
            self.run.log({**row.values, f"{row.stage}/step": row.step, "_timestamp": row.time}, step=row.number)

    def settle(self) -> None:
        for folder in self.old:
            shutil.rmtree(folder)

    def close(self, conclusion: RunEnding) -> None:
        library = import_module("wandb")
        self.run.summary.update(self.facts.summary(conclusion))
        for kind, paths in self.facts.products().items():
            product = library.Artifact(f"{kind}-{self.facts.id}", type=kind)
            for path in paths:
                product.add_file(str(path), policy="immutable", skip_cache=True)  # from its place, without a copy
            self.run.log_artifact(product)
            for page in (path for path in paths if path.suffix == ".html"):
                self.run.summary[kind] = library.Html(page.read_text(), inject=False)
        self.run.finish(exit_code=conclusion.code)
        self._require_room()

    def _require_room(self) -> None:
        """OSError where the disk of W&B's files is full: it would lose what it cannot write, and say nothing."""
        place = self.facts.folder / "wandb"
        if self.offline and place.is_dir() and (reason := shortage(place)):
            raise OSError(errno.ENOSPC, reason)

    def _wait_for_a_name(self, old: Sequence[Path]) -> None:
        """W&B names a folder by the second in which it is made."""
        while any(f"-{time.strftime('%Y%m%d_%H%M%S')}-" in path.name for path in old):
            time.sleep(0.05)


def wanted_mode(settings: TrackingConfig) -> str:
    """The mode that the config or, where it leaves it open, WANDB_MODE asks for: auto, online or offline."""
    word = os.environ.get("WANDB_MODE", "").lower()
    if settings.mode == "auto" and word:
        return "online" if word in ("online", "run", "shared") else "offline"
    return settings.mode


def host() -> str:
    """The name of the server."""
    return urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""


def has_login() -> bool:
    """Whether there is a key for the server: in the environment, or in the file that `wandb login` writes."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    try:
        return host() in netrc.netrc(os.environ.get("NETRC") or Path.home() / ".netrc").hosts
    except (OSError, netrc.NetrcParseError, RuntimeError):
        return False
