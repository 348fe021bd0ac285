#!/usr/bin/env python3
"""Stands in for `python -m ups run CONFIG …`: does what the first word of CONFIG says, and notes each of its lives."""

import json
import os
import signal
import sys
import time
from pathlib import Path

config = Path(next(word for word in sys.argv[1:] if word.endswith(".yaml")))
words = config.read_text().removeprefix("# ").split()
folder = Path(words[1])
flags = [word for word in sys.argv if word.startswith("--name=")]
folder = folder / flags[-1].removeprefix("--name=") if flags else folder
folder.mkdir(parents=True, exist_ok=True)
node = os.environ.get("SLURM_NODEID", "0")
with (folder / f"lives-{node}.jsonl").open("a") as lives:
    print(
        json.dumps({"words": sys.argv[1:], "node": os.environ.get("SLURMD_NODENAME"), "pid": os.getpid()}), file=lives
    )


def leave(_number, _frame):
    with (folder / f"signals-{node}").open("a") as signals:
        print(signal.Signals(_number).name, file=signals)
    sys.exit(15)


for number in (signal.SIGTERM, signal.SIGUSR1) if words[0] != "deaf" else ():
    signal.signal(number, leave)
(folder / "config.yaml").touch()
print("fake run on", os.environ.get("SLURMD_NODENAME"), flush=True)
if name := os.environ.get("FAKE_PRINTS"):
    print(name, "is", os.environ[name], flush=True)
if words[0] == "end":
    sys.exit(int(words[2]))
if words[0] in ("wait", "deaf") and "--resume" not in sys.argv:  # until somebody asks it to stop
    (folder / f"waits-{node}").touch()
    time.sleep(300)
    sys.exit(1)
