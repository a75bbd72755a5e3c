"""A hub on this machine, for the library's own client: one repository of tiny files."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c" * 40
LARGE = (".safetensors", ".gguf", ".bin")  # what the hub keeps in LFS


@dataclass
class Hub:
    """Answers what `model_info` and `snapshot_download` of huggingface_hub 2.4 ask."""

    name: str
    content: dict[str, bytes]
    status: dict[str, int] = field(default_factory=dict)  # of files that are not given
    code: str = ""  # X-Error-Code of every answer about the repository
    described: list[str] = field(default_factory=list)  # paths of what it was asked to describe
    fetched: list[str] = field(default_factory=list)
    address: str = ""

    def answer(self, request: Any) -> None:
        path = unquote(urlsplit(request.path).path)
        if path.startswith(f"/api/models/{self.name}"):
            self._describe(request, path)
        elif path.startswith(f"/{self.name}/resolve/{COMMIT}/"):
            self._give(request, path.split(f"/{COMMIT}/")[1])
        else:
            _send(request, 404, b"", {"X-Error-Code": "RepoNotFound"})

    def _describe(self, request: Any, path: str) -> None:
        self.described.append(path.removeprefix(f"/api/models/{self.name}"))
        if self.code:
            status = 403 if self.code == "GatedRepo" else 404
            _send(request, status, b"", {"X-Error-Code": self.code})
            return
        files = [self._about(name) for name in sorted(self.content)]
        if "/tree/" in path:
            found: Any = [{**one, "type": "file", "path": one["rfilename"]} for one in files]
        else:
            card = {"license": "mit"}
            found = {"id": self.name, "sha": COMMIT, "siblings": files, "cardData": card}
            found |= {"pipeline_tag": "fill-mask", "tags": [], "downloads": 0, "likes": 0}
        _send(request, 200, json.dumps(found).encode(), {"Content-Type": "application/json"})

    def _about(self, name: str) -> dict[str, Any]:
        content = self.content[name]
        about: dict[str, Any] = {"rfilename": name, "size": len(content)}
        about["blobId"] = about["oid"] = hashlib.sha1(content).hexdigest()
        if name.endswith(LARGE):
            digest = hashlib.sha256(content).hexdigest()
            about["lfs"] = {"sha256": digest, "oid": digest, "size": len(content)}
            about["lfs"] |= {"pointerSize": 130}
        return about

    def _give(self, request: Any, name: str) -> None:
        if name in self.status:
            _send(request, self.status[name], b"", {})
            return
        about = self._about(name)
        etag = about["lfs"]["sha256"] if "lfs" in about else about["oid"]
        if request.command == "GET":
            self.fetched.append(name)
        _send(request, 200, self.content[name], {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})


def _send(request: Any, status: int, content: bytes, headers: dict[str, str]) -> None:
    request.send_response(status)
    for name, value in {**headers, "Content-Length": str(len(content))}.items():
        request.send_header(name, value)
    request.end_headers()
    if request.command == "GET":
        request.wfile.write(content)
