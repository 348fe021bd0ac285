"""A run of a sweep that takes no training: `fake_run.py FOLDER KIND TEMPLATE`; it leaves what a real one would."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path


def main(folder: Path, kind: str, template: Path) -> int:
    with (folder.parent / f"started-{folder.name}").open("a") as file:
        file.write(f"{os.getpid()} {os.environ.get('OMP_NUM_THREADS')} {'--resume' in sys.argv}\n")
    if kind == "refused":
        print("ups: there is no such thing; choose another.", file=sys.stderr)
        return 2
    shutil.copytree(template, folder, dirs_exist_ok=True)
    verdict = folder / "verdict.json"
    end = verdict.read_text()
    verdict.unlink()
    fcntl.flock(os.open(folder / ".lock", os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)

    def stop(number: int, _: object) -> None:
        verdict.write_text(json.dumps({"verdict": "PREEMPTED", "cause": signal.Signals(number).name}))
        os._exit(15)

    signal.signal(signal.SIGTERM, stop)
    if kind == "doomed" or (kind == "killed" and "--resume" not in sys.argv):
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "slow" and "--resume" not in sys.argv:
        time.sleep(60)
    verdict.write_text('{"verdict": "OOM", "cause": "rank 0 had no memory left."}' if kind == "bad" else end)
    return 10 if kind == "bad" else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])))
