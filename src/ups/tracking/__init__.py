"""Where the numbers of a run go: a JSONL file always."""

from ups.tracking.jsonl import Jsonl

TRACKERS = {"jsonl": Jsonl}
