"""A hub on 127.0.0.1, as far as huggingface_hub talks to one, that misbehaves as it is told to."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

REPO = "owner/model"
COMMIT = "c0ffee" * 6 + "abcd"
LARGE = (".safetensors", ".bin", ".model")


@dataclass
class Fault:
    """What is wrong with one answer for a file's bytes.

    status: sent instead of the file, with `code` as X-Error-Code. cut: the connection ends after so many bytes.
    flip: the byte at this position of the file is another one. ignores_range: all of the file, with status 200.
    shift: the range begins so many bytes later than asked for, and says so. hides_length: no Content-Length.
    extra: so many bytes more than there are. delay_s: a pause before each 4 KiB.
    """

    status: int | None = None
    code: str | None = None
    cut: int | None = None
    flip: int | None = None
    ignores_range: bool = False
    shift: int = 0
    hides_length: bool = False
    extra: int = 0
    delay_s: float = 0.0


@dataclass
class HubServer:
    """What is served, and what was asked for: (name, Range header), in order."""

    url: str
    files: dict[str, bytes]
    faults: dict[str, deque[Fault]] = field(default_factory=lambda: defaultdict(deque))
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    listing: dict[str, Any] = field(default_factory=dict)
    """Replaces entries of what the hub lists, by file name; None removes a file's."""
    refusal: tuple[int, str | None] | None = None
    tokens: list[str | None] = field(default_factory=list)

    def break_next(self, name: str, *faults: Fault) -> None:
        self.faults[name].extend(faults)

    def ranges(self, name: str) -> list[str | None]:
        return [wanted for found, wanted in self.asked if found == name]

    def siblings(self) -> list[dict[str, Any]]:
        listed = {name: _sibling(name, data) for name, data in self.files.items()} | self.listing
        return [entry for entry in listed.values() if entry is not None]


def _sibling(name: str, data: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"rfilename": name, "size": len(data)}
    if name.endswith(LARGE):
        entry["blobId"] = "0" * 40
        entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
    else:
        entry["blobId"] = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    return entry


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    hub: HubServer

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.close_connection = True
        path = unquote(self.path.partition("?")[0])
        self.hub.tokens.append(self.headers.get("Authorization"))
        with suppress(OSError):  # whoever asked is gone
            if path in (f"/api/models/{REPO}", f"/api/models/{REPO}/revision/v1") and self.hub.refusal is None:
                body = {"id": REPO, "sha": COMMIT, "siblings": self.hub.siblings()}
                self._send(200, json.dumps(body).encode(), {"Content-Type": "application/json"})
            elif path.startswith(f"/api/models/{REPO}/revision/"):
                self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            elif path.startswith("/api/"):
                status, code = self.hub.refusal or (404, "RepoNotFound")
                self._send(status, b"{}", {"X-Error-Code": code} if code else {})
            elif path.startswith(f"/{REPO}/resolve/{COMMIT}/"):
                self._resolve(path.rpartition("/")[2])
            elif path.startswith("/cdn/"):
                self._send_file(path.removeprefix("/cdn/"))
            else:
                self._send(404, b"", {})

    def _resolve(self, name: str) -> None:
        if name.endswith(LARGE):
            self._send(302, b"", {"Location": f"/cdn/{name}"})
        else:
            self._send_file(name)

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def _send_file(self, name: str) -> None:
        wanted = self.headers.get("Range")
        self.hub.asked.append((name, wanted))
        faults = self.hub.faults[name]
        fault = faults.popleft() if faults else Fault()
        if fault.status is not None or name not in self.hub.files:
            code = fault.code if fault.status else "EntryNotFound"
            self._send(fault.status or 404, b"{}", {"X-Error-Code": code} if code else {})
            return
        data = bytearray(self.hub.files[name]) + bytes(fault.extra)
        if fault.flip is not None:
            data[fault.flip] ^= 1
        self.send_response(200 if wanted is None or fault.ignores_range else 206)
        begin, end = 0, len(data)
        if wanted is not None and not fault.ignores_range:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            begin, end = int(first) + fault.shift, min(len(data), int(last) + 1)
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")
        if not fault.hides_length:
            self.send_header("Content-Length", str(end - begin))
        self.send_header("Connection", "close")
        self.end_headers()
        stop = end if fault.cut is None else min(end, begin + fault.cut)
        for at in range(begin, stop, 4096):
            time.sleep(fault.delay_s)
            self.wfile.write(data[at : min(stop, at + 4096)])


@contextmanager
def serving(files: Mapping[str, bytes]) -> Iterator[HubServer]:
    """A hub with one repository, `REPO`, of these files."""
    handler = type("Handler", (_Handler,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub = HubServer(f"http://127.0.0.1:{server.server_address[1]}", dict(files))
    handler.hub = hub  # type: ignore[attr-defined]  # made by type() above
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def environment(home: Path, url: str) -> dict[str, str]:
    """Variables for huggingface_hub: this hub, nothing of the user's, no other way of downloading."""
    return {
        "HF_ENDPOINT": url,
        "HF_HOME": str(home),
        "HF_TOKEN": "",
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_ENABLE_HF_TRANSFER": "0",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
        "HF_HUB_DOWNLOAD_TIMEOUT": "2",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }


def checkpoint_files(*, shard_bytes: int = 100_000) -> dict[str, bytes]:
    """The files of a repository: a checkpoint of two shards, and what nobody needs."""
    shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    index = {"weight_map": {f"tensor.{number}": shard for number, shard in enumerate(shards)}}
    files = {
        "config.json": b'{"model_type": "kimi"}',
        "generation_config.json": b"{}",
        "model.safetensors.index.json": json.dumps(index).encode(),
        "tiktoken.model": bytes(range(256)) * 8,
        "tokenizer_config.json": b"{}",
        "chat_template.jinja": b"{{ messages }}",
    }
    for number, shard in enumerate(shards):
        files[shard] = b"".join(hashlib.sha256(b"%d %d" % (number, at)).digest() for at in range(shard_bytes // 32))
    return files


UNWANTED = {
    "README.md": b"# A model",
    "pytorch_model.bin": b"x" * 1000,
    "model-extra.safetensors": b"y" * 1000,
    "modeling_kimi.py": b"raise SystemExit",
    "onnx/config.json": b"no",
    "../config.json": b"no",
    "/etc/config.json": b"no",
    ".gitattributes": b"",
}
