"""What is deployed: every path, command and option in the Dockerfile and the unit exists."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from qkv.cli.serve import serve
from qkv.serve.guard import OPEN
from qkv.shelf import packaged

ROOT = Path(__file__).parent.parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")
UNIT = (ROOT / "deploy" / "qkv.service").read_text("utf-8")


def instructions(name: str) -> list[str]:
    """The arguments of all instructions of a Dockerfile that have this name."""
    joined = DOCKERFILE.replace("\\\n", " ")
    return [line[len(name) :].strip() for line in joined.splitlines() if line.startswith(name)]


def check_command(words: list[str]) -> None:
    """A command line of `qkv serve` whose options exist and take such values."""
    assert Path(words[0]).name == "qkv" and words[1] == "serve"
    known = set(inspect.signature(serve).parameters)
    rest = iter(words[2:])
    for word in rest:
        if word.startswith("--"):
            assert word[2:].replace("-", "_") in known, word
            value = next(rest)
            if word == "--port":
                assert 0 < int(value) < 65536
        else:
            assert word in packaged()


def test_what_the_image_copies_and_runs_exists() -> None:
    for line in instructions("COPY"):
        *sources, _ = line.split()
        for source in sources:
            assert (ROOT / source).exists(), source
    (entry,) = instructions("ENTRYPOINT")
    check_command(json.loads(entry))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (installed,) = [line for line in instructions("RUN") if ".[" in line]
    assert re.search(r"\.\[(\w+)\]", installed)[1] in extras["optional-dependencies"]
    torch = re.search(r"torch==(\S+)", DOCKERFILE)[1]
    assert f"torch=={torch}" in (ROOT / "Makefile").read_text("utf-8")


def test_the_image_runs_as_nobody_special_and_is_checked() -> None:
    (user,) = instructions("USER")
    assert user not in ("root", "0")
    assert f" {user}" in next(line for line in instructions("RUN") if "useradd" in line)
    (check,) = instructions("HEALTHCHECK")
    path = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", check)
    assert path[1] == instructions("EXPOSE")[0]
    assert path[2] in OPEN


def test_the_unit_starts_the_server() -> None:
    settings = dict(
        line.split("=", 1) for line in UNIT.splitlines() if "=" in line and line[0] != "#"
    )
    check_command(shlex.split(settings["ExecStart"]))
    assert settings["KillSignal"] == "SIGTERM"
    for name in ("NoNewPrivileges", "PrivateTmp", "ProtectHome", "DynamicUser"):
        assert settings[name] == "yes"
    # What runs may take as long as a request may.
    limit = inspect.signature(serve).parameters["max_seconds"].default
    assert int(settings["TimeoutStopSec"]) > limit


@pytest.mark.parametrize("name", ["QKV_API_KEY", "QKV_HOME"])
def test_the_variables_are_read(name: str) -> None:
    assert name in DOCKERFILE + UNIT
    sources = (ROOT / "src" / "qkv" / file for file in ("cli/serve.py", "shelf.py"))
    assert any(name in source.read_text("utf-8") for source in sources)
