"""A recipe: everything that decides a training run, read from and written to TOML."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from qkv.config import sections
from qkv.config.fields import Section, from_mapping, suggestion
from qkv.config.model import ModelConfig, unused_setting
from qkv.config.presets import PRESETS
from qkv.config.tasks import TASKS, Task, default_settings
from qkv.errors import UserError
from qkv.files import reading

FORMAT = 1
"""Of `recipe.toml` in a run folder. Folders without a number are older and list every setting."""
REMOVED = {("data", "shards")}
# Defaults that such folders list; files without such columns are read all the same.
FORMER_COLUMNS = {"source_field": "source", "target_field": "target"}, {"text_field": "text"}


@dataclass(frozen=True)
class Recipe:
    """A whole run; every field has a default that works."""

    task: Task = "translate"
    preset: str = "transformer-small"
    data: sections.DataConfig = sections.DataConfig()
    tokenizer: sections.TokenizerConfig = sections.TokenizerConfig()
    model: Mapping[str, Any] = field(default_factory=dict)
    train: sections.TrainConfig = sections.TrainConfig()
    decode: sections.DecodeConfig = sections.DecodeConfig()
    chat: sections.ChatConfig = sections.ChatConfig()
    prefer: sections.PreferConfig = sections.PreferConfig()
    mask: sections.MaskConfig = sections.MaskConfig()
    denoise: sections.DenoiseConfig = sections.DenoiseConfig()
    classify: sections.ClassifyConfig = sections.ClassifyConfig()
    teacher: sections.TeacherConfig = sections.TeacherConfig()
    tag: sections.TagConfig = sections.TagConfig()
    answer: sections.AnswerConfig = sections.AnswerConfig()
    embed: sections.EmbedConfig = sections.EmbedConfig()


SECTIONS: dict[str, type[Section]] = {
    name: type(value) for name, value in vars(Recipe()).items() if isinstance(value, Section)
}
"""The sections of a recipe, [model] aside."""


def load_recipe(path: Path, overrides: Iterable[str] = ()) -> Recipe:
    """Read a recipe from a TOML file, with `section.key=value` overrides from the command line."""
    with reading(path, "recipe"):
        text = path.read_text(encoding="utf-8-sig")  # some editors put a BOM first
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also numbers too long, or tables too deep
        raise UserError(
            f"{path} is not valid TOML: {error}; correct it (a text is in quotes, and a backslash "
            f"in it is written twice)."
        ) from error
    changed = [_override(values, override) for override in overrides]
    return recipe_from(values, str(path), changed)


def _nearest(name: str) -> str:
    """Suggest a section for a key that stands outside of all, or is misspelt."""
    classes: dict[str, Any] = {**SECTIONS, "model": ModelConfig}
    homes = [f"{key}.{name}" for key, cls in classes.items() if name in cls.__annotations__]
    if homes:
        return f"; did you mean {' or '.join(map(repr, homes))}?"
    return suggestion(name, {"task", *classes})


def recipe_from(
    values: Mapping[str, Any], where: str = "recipe", overridden: Iterable[str] = ()
) -> Recipe:
    """Build a recipe from plain values, as TOML has them; `overridden` settings came by --set."""
    values = _current(values, where)
    try:
        return _checked(values)
    except UserError as error:
        settings = sorted(overridden, key=lambda name: "." not in name)  # train.lr before task
        about = [f"--set {name}" for name in settings if _concerns(str(error), name)]
        raise UserError(f"{[*about, where][0]}: {error}") from error


def _concerns(sentence: str, setting: str) -> bool:
    """Whether an error is about a setting such as train.lr."""
    sentence = sentence.partition("; did you mean")[0]  # another setting
    section, _, key = setting.partition(".")
    if sentence.startswith(f"unknown key {section!r}"):  # the section itself is misspelt
        return True
    named = [re.search(rf"\b{re.escape(name)}\b", sentence) for name in (section, key)]
    return bool(named[0] and (named[1] or f"read [{section}]" in sentence))


def _checked(values: Mapping[str, Any]) -> Recipe:
    for name in values:
        if name not in {"task", "model", *SECTIONS}:
            raise UserError(f"unknown key {name!r}{_nearest(name)}")
        if name != "task" and not isinstance(values[name], Mapping):
            raise UserError(f"{name} must be a section, [{name}].")
    task = values.get("task", Recipe.task)
    if not isinstance(task, str) or task not in TASKS:
        raise UserError(f"task is {task!r}, but must be one of: {', '.join(TASKS)}.")
    defaults = default_settings(task, values)
    read: dict[str, Any] = {}
    for name, cls in SECTIONS.items():
        given = values.get(name, {})
        read[name] = from_mapping(cls, {**defaults.get(name, {}), **given}, f"[{name}]")
        for key in given:
            if not TASKS[task].reads(name, key):
                raise UserError(_unread(task, name, key))
    model = {**defaults.get("model", {}), **values.get("model", {})}
    preset = model.pop("preset", Recipe.preset)
    config = _model(task, preset, model)
    for key in model:
        reason = unused_setting(config, key)
        if reason and not read["train"].start_from:  # else another model decides
            raise UserError(f"[model]: {key} {reason}; leave it out.")
    recipe = Recipe(task=cast(Task, task), preset=preset, model=model, **read)
    _check_together(recipe)
    return recipe


def _current(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Bring a recipe of an earlier version up to date, and drop its format number."""
    current: dict[str, Any] = _plain(values)
    number = current.pop("format", None)
    if number is not None and (not isinstance(number, int) or number > FORMAT):
        raise UserError(
            f"{where}: format is {number!r}, but this version of qkv reads up to {FORMAT}; use the "
            f"version that wrote it."
        )
    train = current.get("train")
    if isinstance(train, dict) and train.get("optimizer") == "adam":
        train["optimizer"] = "adamw"  # which it was another name for
    data = current.get("data")
    if isinstance(data, dict) and "text_fields" in data:
        fields = data.pop("text_fields")
        # Examples had text_fields and plain text had text_field; a run folder listed both.
        if "text_field" not in data or current.get("task") in ("classify", "embed"):
            data["text_field"] = fields
    # A run folder of an earlier version lists every setting, whether its task reads it or not.
    if number is None and SECTIONS.keys() <= current.keys() and current.get("task") in TASKS:
        spec = TASKS[str(current["task"])]
        for columns in FORMER_COLUMNS:
            if columns.items() <= current["data"].items():
                current["data"] = {k: v for k, v in current["data"].items() if k not in columns}
        for section in SECTIONS:
            current[section] = {
                key: value
                for key, value in current[section].items()
                if (section, key) not in REMOVED and spec.reads(section, key)
            }
    return current


def _plain(values: Any) -> Any:
    """Copy values as TOML has them: names and paths as text."""
    if isinstance(values, Mapping):
        return {str(name): _plain(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [*map(_plain, values)]
    return str(values) if isinstance(values, Path) else values


def _unread(task: str, section: str, key: str) -> str:
    readers = [name for name, spec in TASKS.items() if spec.reads(section, key)]
    what = f"{section}.{key}"
    if section not in ("data", "train", "tokenizer"):
        what = f"[{section}]"
    known = f"task = '{task}' does not read {what} (only {', '.join(readers)})"
    return f"{known}; leave it out, or set task to {'one of these' if readers[1:] else 'that'}."


def _model(task: str, name: Any, values: Mapping[str, Any]) -> ModelConfig:
    """Check the [model] section now, so that a mistake shows before a tokenizer is trained."""
    if not isinstance(name, str) or name not in PRESETS:
        raise UserError(f"[model]: unknown preset {name!r}{suggestion(str(name), PRESETS)}")
    config = ModelConfig.from_dict({**PRESETS[name], **values}, "[model]")
    family = TASKS[task].family
    if config.family != family:
        raise UserError(
            f"[model]: task = '{task}' needs a model of family '{family}', but preset {name} is of "
            f"'{config.family}'; choose another preset or task."
        )
    if config.patch_size and task != "classify":
        raise UserError(
            f"[model]: task = '{task}' reads text, but preset {name} reads images; choose another "
            f"preset or task."
        )
    return config


def _check_together(recipe: Recipe) -> None:
    kind = recipe.classify.kind
    if recipe.teacher.models and kind != "class":
        raise UserError("[teacher]: models need classify.kind = 'class'.")
    if recipe.train.consistency and kind != "class":
        raise UserError("[train]: consistency needs classify.kind = 'class'.")
    metrics = ["loss", *TASKS[recipe.task].metrics]
    if recipe.task == "classify":
        metrics = ["loss", "correlation"] if kind == "number" else ["loss", "accuracy", "f1"]
    if recipe.train.metric not in metrics:
        raise UserError(
            f"[train]: metric = '{recipe.train.metric}' is not measured by task = "
            f"'{recipe.task}'; use one of: {', '.join(map(repr, metrics))}."
        )


def recipe_to_dict(recipe: Recipe) -> dict[str, Any]:
    """Return what differs from the defaults of the task, for `recipe_from` to read back."""
    usual = recipe_from(
        {
            "task": recipe.task,
            "classify": {"kind": recipe.classify.kind} if recipe.task == "classify" else {},
        }
    )
    values: dict[str, Any] = {"task": recipe.task}
    model = {} if recipe.preset == usual.preset else {"preset": recipe.preset}
    values["model"] = model | dict(recipe.model)
    for section in SECTIONS:
        now, default = (dataclasses.asdict(getattr(whole, section)) for whole in (recipe, usual))
        values[section] = {key: value for key, value in now.items() if value != default[key]}
    if recipe.classify.kind != sections.ClassifyConfig.kind:
        values["classify"]["kind"] = recipe.classify.kind
    return {name: value for name, value in values.items() if value}


def to_toml(values: Mapping[str, Any]) -> str:
    """Write plain values as TOML: top-level values first, then a section for each mapping."""
    lines, tables = list[str](), list[str]()
    for name, value in values.items():
        if isinstance(value, Mapping):
            tables += ["", f"[{name}]", *(f"{key} = {_toml(v)}" for key, v in value.items())]
        else:
            lines.append(f"{name} = {_toml(value)}")
    return "\n".join(lines + tables) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)  # as TOML writes booleans, integers and strings


def _value(text: str) -> Any:
    """Read a value as TOML, as Python would write it (.5, True), or else as plain text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        text = text.strip()
    if text in ("True", "False"):
        return text == "True"
    return float(text) if re.fullmatch(r"[+-]?(\d+\.|\.\d+)(e[+-]?\d+)?", text) else text


def _override(values: dict[str, Any], override: str) -> str:
    """Apply one `section.key=value`, whose value is TOML or else plain text; return its name."""
    path, equals, text = override.partition("=")
    *sections, key = path.strip().split(".")
    if not equals or not key:
        raise UserError(f"--set {override!r} must have the form section.key=value.")
    value = _value(text)
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise UserError(f"--set {override!r}: {section} is not a section.")
    values[key] = value
    return path.strip()
