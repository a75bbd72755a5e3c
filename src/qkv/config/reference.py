"""Every setting as a Markdown page: `python -m qkv.config.reference > docs/settings.md`."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from typing import Any

from qkv.config.decode import DecodeConfig
from qkv.config.denoise import DenoiseConfig
from qkv.config.fields import describe
from qkv.config.model import ModelConfig
from qkv.config.presets import PRESETS, preset
from qkv.config.recipe import (
    ChatConfig,
    DataConfig,
    Recipe,
    TokenizerConfig,
    TrainConfig,
    recipe_from,
    recipe_to_dict,
)
from qkv.config.tasks import TASK_DEFAULTS
from qkv.config.understand import (
    AnswerConfig,
    ClassifyConfig,
    EmbedConfig,
    MaskConfig,
    TagConfig,
    TeacherConfig,
)

COMMAND = "python -m qkv.config.reference > docs/settings.md"
TOP = f"""\
# Settings

<!-- Generated, not to be edited: {COMMAND} -->

A recipe is a TOML file: a `task` and the sections below. Leave a setting out and it has its
default. On the command line, `--set section.name=value` changes one; a name that does not exist is
an error that suggests the nearest one. [train.md](train.md) shows recipes at work.

At the top of a recipe stands `task`: `"translate"` (an encoder-decoder from sentence pairs; the
default), `"generate"` (a decoder from text), `"instruct"` (a decoder that answers, from questions
and answers), `"fill"` (an encoder from text), `"denoise"` (an encoder-decoder from text, to be
taught to translate or to summarise), `"classify"`, `"tag"`, `"answer"` or `"embed"` (an encoder
that labels texts or words, finds answers, or tells which texts are alike, from examples). Some
defaults depend on it:
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
    "chat": (
        ChatConfig,
        'How turns are written, for `task = "instruct"`: see [tasks.md](tasks.md).',
    ),
    "mask": (
        MaskConfig,
        'What is hidden and which pairs are shown, for `task = "fill"`: see\n'
        "[understanding.md](understanding.md).",
    ),
    "denoise": (
        DenoiseConfig,
        'How text is spoilt and mended, for `task = "denoise"`: see [train.md](train.md).',
    ),
    "classify": (
        ClassifyConfig,
        'What a label is, for `task = "classify"`: see [understanding.md](understanding.md).',
    ),
    "tag": (
        TagConfig,
        'Where labels stand and which are valid, for `task = "tag"`: see\n'
        "[understanding.md](understanding.md).",
    ),
    "answer": (
        AnswerConfig,
        'How answers are looked for, for `task = "answer"`: see\n'
        "[understanding.md](understanding.md).",
    ),
    "embed": (
        EmbedConfig,
        'How a text becomes a vector, for `task = "embed"` and `"fill"`: see\n'
        "[understanding.md](understanding.md).",
    ),
    "teacher": (
        TeacherConfig,
        'Other classifiers to learn from, for `task = "classify"`: see\n'
        "[understanding.md](understanding.md).",
    ),
}
WORDS = {
    "int": "integer",
    "float": "number",
    "str": "text",
    "list of int": "list of integers",
    "list of str": "list of texts",
}


def reference() -> str:
    """All settings of a recipe, section by section."""
    parts = [TOP, _by_task()]
    for name, (config, about) in SECTIONS.items():
        presets = f"\n{_presets()}" if config is ModelConfig else ""
        parts.append(f"## [{name}]\n\n{about}\n{presets}\n{_settings(config)}")
    return "\n".join(parts)


def _by_task() -> str:
    """The defaults that a task changes."""
    tasks = [task for task, usual in TASK_DEFAULTS.items() if usual]
    changed = {
        (section, name): None
        for task in tasks
        for section, values in TASK_DEFAULTS[task].items()
        for name in values
    }
    rows = [
        [f"`{section}.{name}`", *(_default(task, section, name) for task in TASK_DEFAULTS)]
        for section, name in changed
    ]
    return _table(["setting", *(f"`{task}`" for task in TASK_DEFAULTS)], rows)


def _default(task: str, section: str, name: str) -> str:
    recipe = recipe_to_dict(recipe_from({"task": task}))
    return f"`{_toml(recipe[section][name])}`"


def _settings(config: type) -> str:
    rows = [
        [f"`{name}`", _type(kind), f"`{_toml(default)}`", about]
        for name, kind, default, about in describe(config)
    ]
    return _table(["setting", "type", "default", "what it is"], rows)


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
