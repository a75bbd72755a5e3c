"""Every setting as a Markdown page: `python -m qkv.config.reference > docs/settings.md`."""

from __future__ import annotations

import json
import re
from typing import Any

from qkv.config.decode import DecodeConfig
from qkv.config.fields import describe
from qkv.config.model import PRESETS, ModelConfig, preset
from qkv.config.recipe import DataConfig, Recipe, TokenizerConfig, TrainConfig

COMMAND = "python -m qkv.config.reference > docs/settings.md"
TOP = f"""\
# Settings

<!-- Generated, not to be edited: {COMMAND} -->

A recipe is a TOML file: a `task` and the five sections below. Leave a setting out and it has its
default. On the command line, `--set section.name=value` changes one; a name that does not exist is
an error that suggests the nearest one. [train.md](train.md) shows recipes at work.

At the top of a recipe stands `task`, whose only value so far is `"{Recipe.task}"`.
"""
SECTIONS: dict[str, tuple[type, str]] = {
    "data": (DataConfig, "What to train, validate and test on: see [data.md](data.md)."),
    "tokenizer": (TokenizerConfig, "How text becomes token ids: see [text.md](text.md)."),
    "model": (
        ModelConfig,
        "A preset and what differs from it: see [model.md](model.md). `vocab_size`, "
        "`source_vocab_size`,\n`pad_id`, `bos_id` and `eos_id` follow from the tokenizer and stand "
        "in a model's `config.json`,\nnot in a recipe.",
    ),
    "train": (TrainConfig, "How the weights are found: see [train.md](train.md)."),
    "decode": (
        DecodeConfig,
        "How text is searched or drawn: see [decode.md](decode.md). `translate` in Python takes "
        "each of\nthese as an argument, and `qkv translate` has an option for most.",
    ),
}
WORDS = {
    "int": "integer",
    "float": "number",
    "str": "text",
    "list of str": "list of texts",
}


def reference() -> str:
    """All settings of a recipe, section by section."""
    parts = [TOP]
    for name, (config, about) in SECTIONS.items():
        presets = f"\n{_presets()}" if config is ModelConfig else ""
        parts.append(f"## [{name}]\n\n{about}\n{presets}\n{_settings(config)}")
    return "\n".join(parts)


def _settings(config: type) -> str:
    rows = [
        [f"`{name}`", _type(kind), f"`{_toml(default)}`", about]
        for name, kind, default, about in describe(config)
    ]
    return _table(["setting", "type", "default", "what it is"], rows)


def _presets() -> str:
    names = dict.fromkeys(name for sizes in PRESETS.values() for name in sizes)
    rows = [[f"`{each}`", *(_toml(getattr(preset(each), n)) for n in names)] for each in PRESETS]
    usual = (
        f"`preset` is one of these; without it, `{Recipe.preset}`. A preset comes before the "
        f"defaults\nfurther down, and what the recipe says comes before both.\n\n"
    )
    return usual + _table(["preset", *(f"`{name}`" for name in names)], rows)


def _type(kind: str) -> str:
    """A type as people say it; choices as they are written in TOML."""
    kind = kind.replace("bool", "true | false").replace("'", '"')
    *others, last = [WORDS.get(option, f"`{option}`") for option in re.split(r" \| | or ", kind)]
    return f"{', '.join(others)} or {last}" if others else last


def _toml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)  # for these values the same as TOML


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    print(reference(), end="")
