"""Every setting as a Markdown page: `python docs/write_settings.py > docs/settings.md`."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from typing import Any, get_type_hints

from qkv.config.fields import type_name
from qkv.config.model import ModelConfig
from qkv.config.presets import PRESETS, preset
from qkv.config.recipe import SECTIONS, Recipe, recipe_from
from qkv.config.tasks import TASKS

COMMAND = "python docs/write_settings.py > docs/settings.md"
TOP = f"""\
# Settings

<!-- Generated, not to be edited: {COMMAND} -->

A recipe is a TOML file: a `task` and the sections below. A setting that is left out has its
default. On the command line, `--set section.name=value` changes one. A name that does not exist is
an error that suggests the nearest one, and so is a setting that the task does not read.
[train.md](train.md) shows recipes at work.

| task | model | trained from | loss | object |
| --- | --- | --- | --- | --- |
"""
PAGES = {
    "data": "data.md",
    "tokenizer": "text.md",
    "model": "model.md",
    "train": "train.md",
    "decode": "decode.md",
    "chat": "tasks.md",
    "denoise": "train.md",
}
MODEL = (
    "A preset and what differs from it. `vocab_size`, `source_vocab_size`, `pad_id`, `bos_id` and\n"
    "`eos_id` follow from the tokenizer: they are in a model's `config.json`, not in a recipe."
)
WORDS = {
    "int": "integer",
    "float": "number",
    "str": "text",
    "list of int": "list of integers",
    "list of str": "list of texts",
}


def reference() -> str:
    """Return a Markdown page of all settings of a recipe, section by section."""
    tasks = "".join(
        f"| `{name}` | {spec.family} | {', '.join(f'`{file}`' for file in spec.files)} "
        f"| {spec.objective.replace('_', ' ')} | `{spec.result}` |\n"
        for name, spec in TASKS.items()
    )
    parts = [TOP + tasks, "Some defaults depend on the task:\n", _by_task()]
    sections: dict[str, type] = {"model": ModelConfig, **SECTIONS}
    for name, section in sections.items():
        about = MODEL if name == "model" else (section.__doc__ or "").strip()
        presets = f"\n{_presets()}" if name == "model" else ""
        page = PAGES.get(name, "understanding.md")
        parts.append(
            f"## [{name}]\n\n{about} See [{page}]({page}).\n{presets}\n{_settings(name, section)}"
        )
    return "\n".join(parts)


def describe(cls: type) -> list[tuple[str, str, Any, str]]:
    """List (name, type, default, help) of each field."""
    hints = get_type_hints(cls)
    return [
        (field.name, type_name(hints[field.name]), field.default, field.metadata.get("help", ""))
        for field in fields(cls)
    ]


def _by_task() -> str:
    """Return a table of the defaults that depend on the task."""
    changed = {
        (section, name): None
        for spec in TASKS.values()
        for section, values in spec.defaults.items()
        for name in values
    }
    rows = [
        [f"`{section}.{name}`", *(_default(task, section, name) for task in TASKS)]
        for section, name in changed
    ]
    return _table(["setting", *(f"`{task}`" for task in TASKS)], rows)


def _default(task: str, section: str, name: str) -> str:
    if not TASKS[task].reads(section, name):
        return ""
    recipe = recipe_from({"task": task})
    value = recipe.preset if name == "preset" else getattr(getattr(recipe, section), name)
    return f"`{_toml(value)}`"


def _settings(section: str, config: type) -> str:
    rows = [
        [f"`{name}`", _type(kind), f"`{_toml(default)}`", about, _readers(section, name)]
        for name, kind, default, about in describe(config)
    ]
    return _table(["setting", "type", "default", "what it is", "read by"], rows)


def _readers(section: str, name: str) -> str:
    readers = [task for task, spec in TASKS.items() if spec.reads(section, name)]
    return "" if len(readers) == len(TASKS) else ", ".join(readers)


def _presets() -> str:
    """A table for each kind, for presets of different kinds differ in nearly everything."""
    kinds: dict[tuple[str, str, bool], dict[str, ModelConfig]] = {}
    for name in PRESETS:
        config = preset(name)
        kind = config.family, config.positions, bool(config.patch_size)
        kinds.setdefault(kind, {})[name] = config
    usual = (
        f"`preset` is one of these; without it, `{Recipe.preset}`. A preset comes before the "
        f"defaults\nfurther down, and what the recipe says comes before both.\n"
    )
    return "\n".join([usual, *map(_alike, kinds.values())])


def _alike(presets: dict[str, ModelConfig]) -> str:
    """What presets of one kind share, where that is no default, and a table of what differs."""
    values = {
        field.name: [getattr(config, field.name) for config in presets.values()]
        for field in fields(ModelConfig)
    }
    differing = [name for name, of_each in values.items() if len(set(of_each)) > 1]
    defaults = ModelConfig()
    shared = [
        f"`{name} = {_toml(of_each[0])}`"
        for name, of_each in values.items()
        if name not in differing and of_each[0] != getattr(defaults, name)
    ]
    head = f"With {', '.join(shared)}:\n\n" if shared else ""
    rows = [
        [f"`{name}`", *(_toml(getattr(config, each)) for each in differing)]
        for name, config in presets.items()
    ]
    return head + _table(["preset", *(f"`{name}`" for name in differing)], rows)


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
