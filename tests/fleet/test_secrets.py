"""What a library prints holds no key and no password, in whatever way it writes them."""

from __future__ import annotations

import base64
from pathlib import Path
from urllib.parse import quote

import pytest
from pydantic import ValidationError

from ups_fleet.secrets import hiding
from ups_fleet.tracking.settings import TrackingConfig

SECRET = r"pw#p/ass\word99"


@pytest.mark.parametrize(
    "line",
    [
        SECRET,
        repr(SECRET),
        repr({"password": repr(SECRET)}),
        f"https://me:{quote(SECRET, safe='')}@host",
        "Basic " + base64.b64encode(f"me:{SECRET}".encode()).decode(),
        "login by netrc-key-123456",
    ],
)
def test_keys_and_passwords_are_blotted_out_however_they_are_written(line: str, tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password netrc-key-123456\n")
    environ = {"MLFLOW_TRACKING_PASSWORD": SECRET, "MLFLOW_TRACKING_USERNAME": "me", "HOME": str(tmp_path)}
    text = hiding(environ)(line.encode()).decode()
    assert "***" in text
    for piece in ("word99", "netrc-key", base64.b64encode(f"me:{SECRET}".encode()).decode()[4:]):
        assert piece not in text


def test_what_is_no_secret_is_printed_as_it_is(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("not a netrc at all {")
    assert hiding({"HOME": str(tmp_path), "API_KEY": "ab"})(b"about a table") == b"about a table"


@pytest.mark.parametrize(
    "uri", ["https://t0k3n@host", "https://u:p@host", "https:/u:p@h", "u:p@h", "https://h/?token=x"]
)
def test_an_address_that_may_hold_a_password_is_refused(uri: str) -> None:
    with pytest.raises(ValidationError, match="may hold a password or a token"):
        TrackingConfig(uri=uri)


@pytest.mark.parametrize(
    "uri", ["https://mlflow.example.org:5000/a", "sqlite:////home/me@work/m.db", "./runs@home", None]
)
def test_other_addresses_are_taken(uri: str | None) -> None:
    assert TrackingConfig(uri=uri).uri == uri
