"""docs/settings.md is what the settings themselves say."""

import dataclasses
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from docs.write_settings import COMMAND
from docs.write_settings import reference as make_reference
from qkv.config import PRESETS, SECTIONS, ModelConfig, preset
from qkv.config.fields import describe

reference = cache(make_reference)  # one page serves all tests
PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == reference(), f"docs are stale; run: {COMMAND}"


def test_the_command_writes_the_page():
    command = [sys.executable, *COMMAND.removeprefix("python ").partition(" >")[0].split()]
    written = subprocess.run(command, capture_output=True, check=True).stdout
    assert written.decode("utf-8") == reference()


@pytest.mark.parametrize("section", ["model", *SECTIONS])
def test_every_setting_has_a_row_of_its_own(section):
    config = {"model": ModelConfig, **SECTIONS}[section]
    part = reference().partition(f"## [{section}]\n")[2].partition("\n## ")[0]
    part = part.partition("| setting |")[2]
    rows = [line.split(" | ") for line in part.splitlines() if line.startswith("| `")]
    assert [row[0].strip("| `") for row in rows] == [
        field.name for field in dataclasses.fields(config)
    ]
    helps = [row[3] for row in rows]
    assert helps == [help for *_, help in describe(config)] and all(helps)


@pytest.mark.parametrize(
    "row",
    [
        "| `steps` | integer | `20000` | largest number of optimizer steps |  |",
        "| `target` | list of texts | `[]` | target text, line-aligned with `source` | translate |",
        "| `transformer-big` | 1024 | 16 | 4096 | 6 | 6 | 0.3 |",
    ],
)
def test_rows_read_as_a_recipe_is_written(row):
    assert f"{row}\n" in reference()


def test_every_preset_can_be_read_off_its_table():
    """What a table's heading line says of all, what a row says of one, and the defaults."""
    found, shared, names = {}, {}, []
    part = reference().partition("`preset` is one of these")[2].partition("| setting |")[0]
    for line in part.splitlines():
        if line.startswith("With "):
            shared = {k: json.loads(v) for k, v in re.findall(r"`(\w+) = (.+?)`", line)}
        elif line.startswith("| preset |"):
            names = re.findall(r"`(\w+)`", line)
        elif line.startswith("| `"):
            name, *values = line.strip("| ").split(" | ")
            row = dict(zip(names, map(json.loads, values), strict=True))
            found[name.strip("`")] = ModelConfig.from_dict({**shared, **row})
    assert found == {name: preset(name) for name in PRESETS}


def test_a_choice_between_kinds_names_each():
    row = next(line for line in reference().splitlines() if line.startswith("| `early_stopping`"))
    assert '| `true`, `false` or `"never"` | `false` |' in row
