"""A hub of models on this machine, for HF_ENDPOINT: one name, whose `main` is moved from commit to commit."""

from __future__ import annotations

import hashlib
import json
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Hub:
    """A context manager. `main` is the folder of the commit that the name stands for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.main = Path()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.hub = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def commit(self) -> str:
        return hashlib.sha1(str(self.main).encode()).hexdigest()

    def __enter__(self) -> Hub:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub: Hub = self.server.hub  # type: ignore[attr-defined]
        path = urllib.parse.unquote(urllib.parse.urlparse(self.path).path)
        files = sorted(hub.main.iterdir())
        if path.startswith(f"/api/models/{hub.name}/tree/"):
            self._answer([{"type": "file", "path": each.name, "size": each.stat().st_size,
                           "oid": _tag(each)} for each in files])  # fmt: skip
        elif path.startswith(f"/api/models/{hub.name}"):
            named = [{"rfilename": each.name} for each in files]
            self._answer({"id": hub.name, "sha": hub.commit, "siblings": named, "tags": []})
        elif path.startswith(f"/{hub.name}/resolve/") and (found := hub.main / path.split("/")[-1]).exists():
            self._send(200, found.read_bytes(), {"ETag": f'"{_tag(found)}"'})
        else:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})

    def _answer(self, what: Any) -> None:
        self._send(200, json.dumps(what).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        hub: Hub = self.server.hub  # type: ignore[attr-defined]
        self.send_response(status)
        for name, value in {**headers, "X-Repo-Commit": hub.commit}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


def _tag(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()
