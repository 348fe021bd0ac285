"""Where the numbers of a run go: a JSONL file always."""
