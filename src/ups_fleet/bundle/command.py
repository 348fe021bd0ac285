"""`ups bundle`: this package and all it needs but torch, for a machine without a network."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from ups.cli.places import Place
from ups.screen import waiting
from ups.wings import CHECK, Command


def bundle(
    *,
    python: str | None = None,
    platform: str | None = None,
    extras: Annotated[str | None, Parameter(name="--with")] = None,
    without: str = "torch",
    out: Place | None = None,
    archive: bool = False,
    whole: bool = False,
) -> None:
    """Put this package, the wheels it needs and a self-test into one folder, for a machine without a network.

    There `python selftest.py` checks every file, unpacks them, makes a tiny data set, trains on it and judges the
    result; nothing is installed. Versions are those that are installed here.

    Parameters
    ----------
    python
        Version of Python over there, for example 3.12; the one that runs this by default.
    platform
        Its processor: x86_64 or aarch64; this machine's by default.
    extras
        Extras of this package to take along, for example baselines,tensorboard.
    without
        Packages that are there already, for example torch,numpy; the bundle takes neither them nor what only they need.
    out
        The folder, new or empty. `ups-bundle-VERSION-pyPYTHON-PLATFORM` by default.
    archive
        One .tar.xz in the place of the folder: a third smaller, and minutes slower to make.
    whole
        Leave the wheels as they were published, with their tests and type stubs.
    """
    with waiting("getting ready") as show:
        from ups_fleet.bundle.bundle import BundleRequest, make_bundle, summary

        request = BundleRequest(python or "", platform or "", _words(extras), _words(without), out, archive, whole)
        path = make_bundle(request, show)
    print(f"{path}\n{summary(path)}")


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


COMMAND = Command("bundle", bundle, CHECK)
