#!/usr/bin/env python3
"""Stands in for SkyPilot's `sky`: keeps clusters in $FAKE_SKY, and speaks and leaves as the real one does."""

import json
import os
import sys
from pathlib import Path

STATE = Path(os.environ["FAKE_SKY"])
CODES = {"SUCCEEDED": 0, "FAILED": 100, "RUNNING": 101, "CANCELLED": 103}
clusters = json.loads(STATE.read_text()) if STATE.exists() else {}
verb, words = sys.argv[1], sys.argv[2:]
with STATE.with_suffix(".calls").open("a") as calls:
    print(json.dumps([verb, *words]), file=calls)


def known(name: str) -> str:
    if name not in clusters:
        sys.exit(f"sky.exceptions.ClusterDoesNotExist: Cluster '{name}' does not exist.")
    return name


if verb == "launch":
    missing = [words[i + 1] for i, word in enumerate(words) if word == "--secret" and words[i + 1] not in os.environ]
    if missing:
        sys.exit(f"Error: {missing[0]} is not set in local env.")
    clusters[words[words.index("--cluster") + 1]] = os.environ.get("FAKE_SKY_JOB", "RUNNING")
elif verb == "status":
    print("Clusters\nNAME  INFRA  STATUS\n" + "\n".join(f"{name}  AWS  UP" for name in clusters))
elif verb == "logs" and "--status" in words:
    job = clusters[known(words[-1])]
    print(f"Job 1: {job}")
    sys.exit(CODES[job])
elif verb == "logs":
    print(f"(task) the log of {known(words[-1])}")
elif verb == "down":
    del clusters[known(words[-1])]
STATE.write_text(json.dumps(clusters))
