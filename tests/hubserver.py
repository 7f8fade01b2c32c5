"""A small hub, which answers as the real one does to what its library asks for models and their files."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from hashlib import sha1
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Event
from typing import Any, ClassVar
from urllib.parse import unquote

from servers import Answer, as_json

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WRITER, READER = "hf_may_write", "hf_may_read"
"""Tokens: one that may write, and one that may not."""


def hub_of(models: Path) -> Any:
    """A hub with the models of a folder, each at one commit. What is pushed to it is kept there as well."""

    class Hub(BaseHTTPRequestHandler):
        asked: ClassVar[list[str]] = []
        """The method and path of each request."""
        cut: ClassVar[dict[str, float]] = {}
        """The files whose content stops in the middle, and for how many seconds, before the connection is closed."""

        def do_GET(self) -> None:
            self.asked.append(f"{self.command} {self.path.partition('?')[0]}")
            place = re.fullmatch(
                r"/(?:api/models/)?org/([\w.-]+)(?:/(?:revision|resolve)/([^/]+))?/?(.*)", self.path.partition("?")[0]
            )
            name, revision, file = place.groups() if place else ("gone", None, "")
            path = models / ("alpha" if name.startswith("gated") else name) / file
            found = path.exists() and revision in (None, "main", COMMIT)
            content = b""
            # Of a gated model the hub tells the files to all.
            if (gate := re.match(r"gated-(\d+)", name)) is not None and (file or "files" not in name):
                self.answer(int(gate[1]), b"", "GatedRepo")
                return
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
            if self.command != "HEAD" and (name := self.path.rpartition("/")[2]) in self.cut:
                self.wfile.write(content[: len(content) // 2])
                self.wfile.flush()
                Event().wait(self.cut[name])
                return
            self.wfile.write(b"" if self.command == "HEAD" else content)

        def log_message(self, *_: object) -> None:
            pass

    return Hub


def commit_of(revision: str) -> str:
    """The commit of a revision of the data sets below."""
    return sha1(revision.encode()).hexdigest()


def data_sets(folder: Path) -> Callable[[str, dict[str, Any]], Answer]:
    """A hub with the data sets of a folder: ``ORG/NAME/REVISION/FILE``, with ``~`` for each ``/`` in a revision."""

    def answer(path: str, body: dict[str, Any]) -> Answer:
        path, _, query = unquote(path).partition("?")
        place = re.fullmatch(
            r"(?:/api)?/datasets/([\w-]+/[\w.-]+)(?:/(\w[\w-]*)/(refs/convert/parquet|[^/]+)/?(.*))?", path
        )
        name, what, revision, file = place.groups() if place else ("gone", None, None, None)
        known = {each.name.replace("~", "/"): each for each in (folder / name).iterdir()} if place else {}
        found = [each for each in known if (revision or "main") in (each, commit_of(each))]
        if not found:
            return as_json({}, 404, **{"X-Error-Code": "RevisionNotFound" if known else "RepoNotFound"})
        root, commit = known[found[0]], commit_of(found[0])
        head = {"X-Repo-Commit": commit, "ETag": f'"{commit}-{file}"'}
        if what == "resolve":
            there = (root / file).is_file()
            missing = as_json({}, 404, **{"X-Error-Code": "EntryNotFound"}, **head)
            return (200, head, (root / file).read_bytes()) if there else missing
        entries = [entry(each, root) for each in sorted(root.rglob("*"))]
        below = [each for each in entries if each["path"].startswith(f"{file}/" if file else "")]
        depth = None if "recursive=true" in query.lower() else len(Path(file or "").parts) + 1
        siblings = [{"rfilename": each["path"]} for each in entries if each["type"] == "file"]
        answers: dict[str | None, Any] = {
            "tree": [each for each in below if depth in (None, len(Path(each["path"]).parts))],
            "paths-info": [each for each in entries if each["path"] in body.get("paths", ())],
        }
        return as_json(answers.get(what, {"id": name, "sha": commit, "siblings": siblings, "private": False}))

    return answer


def entry(path: Path, root: Path) -> dict[str, Any]:
    """A file or folder as the hub lists it."""
    kind = "file" if path.is_file() else "directory"
    return {"type": kind, "path": str(path.relative_to(root)), "oid": "0" * 40, "size": path.stat().st_size}
