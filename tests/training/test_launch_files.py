"""The options in docs/scaling.md and docs/launch/ exist."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
import typer
from torch.distributed.run import get_args_parser

from qkv.cli.app import command_line
from qkv.config import SECTIONS

DOCS = Path(__file__).resolve().parents[2] / "docs"
FILES = [DOCS / "scaling.md", DOCS / "launch" / "slurm.sh", DOCS / "launch" / "kubernetes.yaml"]
OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]*)")


def commands(path: Path) -> list[str]:
    """What begins with torchrun or `qkv train`, up to the end of its line or list."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    if path.suffix == ".yaml":
        items = re.search(r"command:\n((?:\s+- .*\n)+)", text)
        assert items
        return [" ".join(re.findall(r"- (\S+)\n", items[1]))]
    return re.findall(r"(?:torchrun|qkv train) [^`\n#]*", text)


def torchrun_options() -> set[str]:
    return {name for action in get_args_parser()._actions for name in action.option_strings}


def train_options() -> set[str]:
    command = typer.main.get_command(command_line(["train"]))
    assert isinstance(command, typer.core.TyperGroup)
    return {name for option in command.commands["train"].params for name in option.opts}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_option_is_one_of_torchrun_or_of_train(path: Path) -> None:
    found = commands(path)
    assert found
    for line in found:
        launcher, ours = line, ""
        if "qkv train" in line:
            launcher, _, ours = line.partition("qkv train")
        assert set(OPTION.findall(launcher)) <= torchrun_options(), line
        assert set(OPTION.findall(ours)) <= train_options(), line


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_setting_that_is_changed_exists(path: Path) -> None:
    for section, name in re.findall(r"--set[ =](\w+)\.(\w+)=", path.read_text(encoding="utf-8")):
        assert name in {field.name for field in fields(SECTIONS[section])}
