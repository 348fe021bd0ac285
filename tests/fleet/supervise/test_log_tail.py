"""The last words of a process: a crash is found in them however much stands before and behind it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ups_fleet.supervise.log_tail import innermost_line, log_tail

# Two threads with deep stacks and more extension modules than any program has: what faulthandler then prints is long.
CRASH = """
import ctypes, faulthandler, sys, threading, time
faulthandler.enable()
sys.modules.update({f"extension_with_a_long_name_{n}": sys.modules["_thread"] for n in range(1000)})
def deep(n, then):
    deep(n - 1, then) if n else then()
threading.Thread(target=deep, args=(120, lambda: time.sleep(9)), daemon=True).start()
time.sleep(0.2)
print("x" * 20000, flush=True)
deep(120, lambda: ctypes.string_at(0))
"""


def test_a_crash_is_found_among_many_modules_and_deep_stacks(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as log:
        subprocess.run([sys.executable, "-c", CRASH], check=False, stdout=log, stderr=log, timeout=600)
    whole = path.read_text()
    assert whole.count("extension_with_a_long_name") > 500, "this is what used to push the stack out"
    assert "string_at" not in whole[-8000:]
    told = log_tail(path)
    assert len(told) <= 10000
    assert "Segmentation fault" in told
    assert innermost_line(told).startswith(", in string_at (__init__.py, line ")


def test_a_log_without_a_crash_is_its_end(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a" * 9000 + "end")
    assert log_tail(tmp_path / "log", 100) == "a" * 97 + "end"
    assert log_tail(tmp_path / "nothing") == ""
    assert innermost_line("no stack") == ""
