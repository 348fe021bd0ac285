"""Keys and passwords to plant in the environment of a command, and where they turn up in what it leaves."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

PLANTED = {
    "WANDB_API_KEY": "planted-0-wandb-key-4711",
    "AWS_SECRET_ACCESS_KEY": "planted-1/aws+secret/4711",
    "HF_TOKEN": "planted-2-hf-token-4711",
    "MLFLOW_TRACKING_PASSWORD": "planted-3#pass",
    "VAST_API_KEY": "planted-6-vast-key-4711",
    "HTTPS_PROXY": "http://me:planted-4-proxy@127.0.0.1:9",
}
VALUES = [*list(PLANTED.values())[:-1], "planted-4-proxy", "planted-5-netrc"]


def leaks(folder: Path) -> Iterator[str]:
    """Where in a folder a planted secret stands, as it is or in base64."""
    forms = [form for value in VALUES for form in (value.encode(), base64.b64encode(value.encode()))]
    for path in (path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes() + str(path).encode()
        yield from (f"{path}: {form!r}" for form in forms if form in content)
