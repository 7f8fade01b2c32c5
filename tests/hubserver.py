"""A small hub, which answers as the real one does to what its library asks for models and their files."""

from __future__ import annotations

import base64
import json
import re
from http.server import BaseHTTPRequestHandler
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WRITER, READER = "hf_may_write", "hf_may_read"
"""Tokens: one that may write, and one that may not."""


def hub_of(models: Path) -> type[BaseHTTPRequestHandler]:
    """A hub with the models of a folder, each at one commit. What is pushed to it is kept there as well."""

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            place = re.fullmatch(
                r"/(?:api/models/)?org/([\w.-]+)(?:/(?:revision|resolve)/([^/]+))?/?(.*)", self.path.partition("?")[0]
            )
            name, revision, file = place.groups() if place else ("gone", None, "")
            path = models / name / file
            found = path.exists() and revision in (None, "main", COMMIT)
            content = b""
            if found and path.is_dir():
                files = [{"rfilename": each.name, "size": each.stat().st_size} for each in path.iterdir()]
                content = json.dumps({"id": f"org/{name}", "sha": COMMIT, "siblings": files}).encode()
            elif found:
                content = path.read_bytes()
            missing = "EntryNotFound" if file else "RevisionNotFound" if path.exists() else "RepoNotFound"
            self.answer(200 if found else 404, content, ("ETag", f'"{name}-{file}"') if found else missing)

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            if token != WRITER:
                self.answer(403 if token == READER else 401, b'{"error": "not allowed"}', "Forbidden")
            elif self.path == "/api/repos/create":
                self.create(json.loads(content))
            elif self.path == "/api/validate-yaml":
                self.answer(200, b'{"errors": [], "warnings": []}')
            elif "/preupload/" in self.path:
                files = [each["path"] for each in json.loads(content)["files"]]
                modes = [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in files]
                self.answer(200, json.dumps({"files": modes}).encode())
            else:
                self.commit(self.path.split("/")[4], [json.loads(line) for line in content.splitlines()])

        def create(self, wanted: dict[str, str]) -> None:
            there = (models / wanted["name"]).exists()
            (models / wanted["name"]).mkdir(exist_ok=True)
            if not there:
                # Older releases of the client say private instead.
                visibility = wanted.get("visibility") or ("private" if wanted.get("private") else "public")
                (models / wanted["name"] / ".gitattributes").write_text(visibility, encoding="utf-8")
            url = json.dumps({"url": f"http://{self.headers['Host']}/org/{wanted['name']}"}).encode()
            self.answer(409 if there else 200, url)

        def commit(self, name: str, lines: list[dict[str, dict[str, str]]]) -> None:
            for line in lines:
                if line["key"] == "file":
                    value = line["value"]
                    (models / name / value["path"]).write_bytes(base64.b64decode(value["content"]))
            url = f"http://{self.headers['Host']}/org/{name}/commit/{COMMIT}"
            self.answer(200, json.dumps({"commitUrl": url, "commitOid": COMMIT}).encode())

        def answer(self, status: int, content: bytes, header: tuple[str, str] | str = ("X-Fine", "yes")) -> None:
            self.send_response(status)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", str(len(content)))
            self.send_header(*(("X-Error-Code", header) if isinstance(header, str) else header))
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else content)

        def log_message(self, *_: object) -> None:
            pass

    return Hub
