"""All tests of a worker fork their processes from one server: the first to start it says what it has imported."""

from __future__ import annotations

import gc
import os
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no fault of a test: how long examples take to be drawn decides nothing.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
# Tests in whose process pictures are really drawn.
DRAWN = ("eval/", "jobs/test_evaluate.py", "fleet/run_folders/", "pages/", "run/test_run.py")
GROUPS = Path("/sys/fs/cgroup/memory")
# Files that take a worker longest, by their seconds: begun first, so that none of them is alone at the end.
LONGEST = (
    *(
        "engine/test_ranks.py",
        "fleet/fault_tests/test_faults.py",
        "jobs/test_propose.py",
        "physics/test_fit.py",
    ),
    *(
        "models/test_trust.py",
        "engine/test_sharded.py",
        "run/test_generate.py",
        "run/test_data_identity.py",
    ),
    *(
        "fleet/supervise/test_supervisor.py",
        "physics/test_compressible.py",
        "run/test_start_from.py",
        "jobs/test_estimate.py",
    ),
    *(
        "run/test_run.py",
        "stages/test_howto_add_a_stage.py",
        "stages/test_learning.py",
        "fleet/doctor/test_all_checks.py",
    ),
    *(
        "jobs/test_evaluate.py",
        "run/test_open_data.py",
        "pages/test_charts.py",
        "bench/test_tables.py",
    ),
    *(
        "jobs/test_scaling.py",
        "stages/test_stages.py",
        "physics/test_transport.py",
        "physics/test_dispersive.py",
    ),
    *(
        "stages/test_consistency.py",
        "physics/test_every_equation.py",
        "physics/test_reaction.py",
        "stages/test_steady.py",
    ),
    *(
        "run/test_staged.py",
        "fleet/running/test_forever.py",
        "fleet/supervise/test_survival.py",
        "fleet/running/test_supervise.py",
    ),
    *(
        "run/test_gates.py",
        "run/test_calibrate.py",
        "models/test_operator.py",
        "fleet/lightning/test_lightning.py",
    ),
    *(
        "fleet/tracking/test_mirrors.py",
        "test_streams.py",
        "test_stuck_readers.py",
        "test_full_disk.py",
    ),
    *("physics/test_howto.py",),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {Path(__file__).parent / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


def pytest_collection_finish() -> None:
    gc.freeze()  # what all test files have imported: each collection of garbage would look at it again, for 0.5 s


@pytest.fixture(scope="session", autouse=True)
def server() -> None:
    from ranks import warm_up  # here, for it imports torch, which the process that hands out the tests does without

    warm_up()


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Ctrl-C is heard, though shells start what they put in the background with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine says no more on standard error than a quick one."""
    monkeypatch.setattr("ups.screen.AT_FIRST", 600.0)


@pytest.fixture(scope="module", autouse=True)
def pictures(request: pytest.FixtureRequest) -> Iterator[None]:
    """Pictures are blank, in this process and in those that are forked, but for tests that are about pages."""
    from blank_pictures import drawn

    with pytest.MonkeyPatch.context() as patch:
        if request.path.relative_to(Path(__file__).parent).as_posix().startswith(DRAWN):
            patch.setattr("ups.pages.drawing.drawn", drawn)
        yield


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group (version 1) of 64 MB in which the kernel really kills."""
    if os.geteuid() != 0 or not (GROUPS / "memory.oom_control").exists() or not os.access(GROUPS, os.W_OK):
        pytest.skip("needs root and the memory controller of control groups, version 1")
    folder = GROUPS / f"ups-test-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text(str(64 << 20))
    yield folder
    for _ in range(600):
        if not (folder / "cgroup.procs").read_text().split():
            break
        time.sleep(0.1)
    folder.rmdir()
