"""Start: how a run was asked to begin. Whoever carries it out is given this; its ranks find it in their environment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from ups.run.journal import Span
from ups.run.preflight import Preflight

VARIABLE = "UPS_START"  # of a rank


@dataclass(frozen=True)
class Start:
    """What was asked for beside the config of a run.

    Args:
        resume: go on with the run that the folder holds.
        overwrite: delete what the folder holds.
        force: resume although the config differs, where that changes nothing of what is learnt.
        span: the phases to carry out.
        preflight: what is looked at before the first step.
        traced: steps of every stage of which each rank leaves a trace.
        began: when the command was started, by the wall clock; None: with its process.
        before: a phase that came before there was a run, and its seconds.
        minutes: all that the run may take since it `began`, its report included: stages that train for seconds have
            less of them where other things take long. None: as its config says.
    """

    resume: bool = False
    overwrite: bool = False
    force: bool = False
    span: Span = field(default_factory=Span)
    preflight: Preflight = field(default_factory=Preflight)
    traced: int = 0
    began: float | None = None
    before: tuple[str, float] = ("data", 0.0)
    minutes: float | None = None

    def environment(self) -> dict[str, str]:
        """What tells a rank; the folder is opened by whoever starts it."""
        values = {"first": self.span.first, "last": self.span.last, "traced": self.traced, "began": self.began}
        return {VARIABLE: json.dumps(values)}

    @classmethod
    def of_rank(cls, preflight: Preflight, environ: Mapping[str, str] = os.environ) -> Start:
        """What a rank was told; all phases where nobody told it anything."""
        values = json.loads(environ.get(VARIABLE, "{}"))
        span = Span(values.pop("first", Span.first), values.pop("last", Span.last))
        return cls(span=span, preflight=preflight, **values)


ANEW = Start()  # from the beginning to the end
