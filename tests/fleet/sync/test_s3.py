"""The same on a real object store's protocol: fetched from, copied to, brought back, denied, and down."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from threading import Thread

import pytest
from copied_runs import one_pass

from ups.progress import Progress
from ups.rundir import RunDir
from ups.types import ConfigError, DataError
from ups_fleet.fetch.fetch import plan
from ups_fleet.fetch.patience import UnreachableError
from ups_fleet.sync import push, restore
from ups_fleet.sync.push import CopyReceipt, receipt_of
from ups_fleet.sync.remote_run import RemoteRun


@pytest.fixture(scope="module", autouse=True)
def packages() -> None:
    """Imported by the one process that runs these tests, and not by all that read this file."""
    pytest.importorskip("s3fs", reason="the extra `remote` is not installed")
    pytest.importorskip("moto.server", reason="moto[server] is not installed")


def silent(_: Progress) -> None:
    """Not shown."""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "planted-key-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-secret-key")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    store = s3fs.S3FileSystem()
    if not store.exists("runs"):
        store.mkdir("runs")
    return "s3://runs/of-mine"


def a_run(folder: Path) -> RunDir:
    run = RunDir(folder / "tiny")
    run.folder.mkdir(parents=True)
    run.environment.write_text('{"run": "abc", "fingerprint": "f"}')
    run.artifact("simulator").parent.mkdir()
    run.artifact("simulator").write_bytes(Random(1).randbytes(3_000_000))
    run.verdict.write_text('{"verdict": "SUCCESS"}\n')
    return run


def test_a_run_goes_to_s3_and_comes_back(bucket: str, tmp_path: Path) -> None:
    run = a_run(tmp_path)
    assert one_pass(run, bucket), CopyReceipt.read(receipt_of(run)).trouble
    content = run.artifact("simulator").read_bytes()
    shutil.rmtree(run.folder)
    restore.remember(run, restore.prepare(bucket, run.folder, lambda _: None, resume=True, overwrite=False))
    assert run.artifact("simulator").read_bytes() == content
    run.verdict.write_text("{}\n")
    remote = RemoteRun(bucket, "tiny")
    push.push(run, remote, lambda: None)
    manifest = remote.manifest()
    assert manifest is not None
    assert {row["key"]: (row["bytes"], row["tag"]) for row in manifest.files.values()} == remote.listed()
    key = f"{remote.path}/{manifest.files['artifacts/simulator.safetensors']['key']}"
    remote.store.pipe_file(key, bytes(len(content)))  # somebody else's bytes, as many
    push.push(run, remote, lambda: None)
    files = plan([f"{bucket}/tiny/files/"], tmp_path / "fetched", silent).fetch()
    assert content in [path.read_bytes() for path in files]
    text = "".join(path.read_text(errors="ignore") for path in tmp_path.rglob("*.json"))
    assert "planted" not in text


class Daemons(ThreadingHTTPServer):
    daemon_threads, block_on_close = True, False


class Denying(BaseHTTPRequestHandler):
    """A bucket that nobody may write to."""

    def answer(self) -> None:
        body = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
        self.send_response(403)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


for method in ("GET", "PUT", "HEAD", "POST", "DELETE"):
    setattr(Denying, f"do_{method}", Denying.answer)


@pytest.mark.usefixtures("bucket")
def test_a_bucket_that_denies_is_one_sentence_before_work_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    with Daemons(("127.0.0.1", 0), Denying) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        s3fs.S3FileSystem.clear_instance_cache()
        with pytest.raises(ConfigError, match=r"is denied .*Nothing was begun") as error:
            restore.prepare("s3://runs/x", tmp_path / "tiny", lambda _: None, resume=False, overwrite=False)
        with pytest.raises(DataError, match="is denied"):
            plan(["s3://runs/a.h5"], tmp_path, silent)
        server.shutdown()
    assert "planted" not in str(error.value)
    assert "\n" not in str(error.value)
    s3fs.S3FileSystem.clear_instance_cache()


def test_a_bucket_that_is_not_there_and_a_store_that_is_down_are_one_sentence(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"sync: s3://nobody-has-this/x/tiny: .*Nothing was begun"):
        restore.prepare("s3://nobody-has-this/x", tmp_path / "tiny", lambda _: None, resume=False, overwrite=False)
    with pytest.raises(DataError, match="does not exist"):
        plan([f"{bucket}/nothing.h5"], tmp_path, silent)
    import s3fs

    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed.getsockname()[1]}")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        s3fs.S3FileSystem.clear_instance_cache()
        began = time.monotonic()
        with pytest.raises(UnreachableError, match="does not answer") as error:
            restore.prepare(bucket, tmp_path / "tiny", lambda _: None, resume=False, overwrite=False)
        assert time.monotonic() - began < 60
    assert "planted" not in str(error.value)
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.usefixtures("bucket")
def test_a_folder_that_a_console_has_made_is_fetched_without_its_marker(tmp_path: Path) -> None:
    import s3fs

    store = s3fs.S3FileSystem()
    for key, content in (("m/", b""), ("m/sub/", b""), ("m/sub/a.bin", b"1"), ("m/d.zarr/.zgroup", b"{}")):
        store.call_s3("put_object", Bucket="runs", Key=key, Body=content)
    paths = plan(["s3://runs/m/"], tmp_path, silent).fetch()
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == ["d.zarr/.zgroup", "sub/a.bin"]
