"""What a run is: data, tokenizer, model and training, as one TOML recipe."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from qkv.config.decode import DecodeConfig
from qkv.config.denoise import DenoiseConfig
from qkv.config.fields import check_ranges, from_mapping, setting, suggestion
from qkv.config.model import ModelConfig
from qkv.config.presets import PRESETS
from qkv.config.tasks import FAMILIES, MEASURED, Task, usual_settings
from qkv.config.understand import (
    AnswerConfig,
    ClassifyConfig,
    EmbedConfig,
    MaskConfig,
    TagConfig,
    TeacherConfig,
)
from qkv.errors import UserError


@dataclass(frozen=True)
class DataConfig:
    """Where the text is and which of it is used. Paths are relative to the working directory."""

    corpus: Literal["", "demo"] = setting("", "'demo': the packaged zh→en sentences, no files")
    source: tuple[str, ...] = setting((), "source text, a line a sentence; .gz too; one or many")
    target: tuple[str, ...] = setting((), "target text, line-aligned with `source`")
    pairs: tuple[str, ...] = setting((), "instead: .tsv or .jsonl files that hold both sides")
    valid_source: tuple[str, ...] = setting((), "validation source text")
    valid_target: tuple[str, ...] = setting((), "validation target text")
    valid_pairs: tuple[str, ...] = setting((), "validation pairs as .tsv or .jsonl")
    test_source: tuple[str, ...] = setting((), "test source text, scored once at the end")
    test_target: tuple[str, ...] = setting((), "test target text")
    test_pairs: tuple[str, ...] = setting((), "test pairs as .tsv or .jsonl")
    source_field: str = setting("source", "the source's key in .jsonl files")
    target_field: str = setting("target", "the target's key in .jsonl files")
    text: tuple[str, ...] = setting(
        (),
        "plain text to learn from: .txt, .jsonl, .tsv, .gz; files, folders or patterns ('a/*.txt')",
    )
    valid_text: tuple[str, ...] = setting((), "validation text")
    test_text: tuple[str, ...] = setting((), "test text, measured once at the end")
    text_field: str = setting("text", "the text's key in .jsonl files, or column in .tsv files")
    template: str = setting(
        "", "instead: a .jsonl record's text with its fields filled in, like '{title}: {body}'"
    )
    documents: Literal["file", "paragraph", "line"] = setting(
        "file", "what a document is in plain text; paragraphs stand between blank lines"
    )
    bos: bool = setting(True, "begin each document with BOS; each ends with EOS in any case")
    across: bool = setting(False, "let attention run on from one document into the next")
    valid_share: float = setting(
        0.05,
        "of the documents or, where these are few, the text's end; if no valid_text is set",
        least=0,
        most=0.5,
    )
    shards: str = setting("", "folder for the text's tokens; empty: in the run folder")
    records: tuple[str, ...] = setting(
        (), "instructions with answers, or conversations, as .jsonl or .json; .gz too"
    )
    valid_records: tuple[str, ...] = setting((), "validation records")
    test_records: tuple[str, ...] = setting((), "test records, answered once at the end")
    examples: tuple[str, ...] = setting(
        (),
        "what to understand: labelled texts (.tsv, .csv, .jsonl), tagged words (.conll), questions "
        "(.json), pairs of like texts, or images (.npz, folders)",
    )
    valid_examples: tuple[str, ...] = setting((), "validation examples")
    test_examples: tuple[str, ...] = setting((), "test examples, scored once at the end")
    label_field: str = setting("label", "the label's column or key in examples")
    text_fields: tuple[str, ...] = setting(
        (), "the column of the text, or both of a pair; none: all columns but the label"
    )
    n_examples: int = setting(
        0, "train on so many, drawn by the seed, as many of each class; 0: all", least=0
    )
    valid_size: int = setting(
        1000,
        "pairs, records or examples cut off for validation where none are given (at most a tenth)",
        least=1,
    )
    max_length: int = setting(
        256,
        "longer pairs or records (tokens, EOS counted) are dropped, text is read in windows of "
        "this size; 0: the model's max_length",
        least=0,
    )
    max_ratio: float = setting(9.0, "pairs whose lengths differ by more are dropped", least=1)
    licence: str = setting("not stated", "of the text; noted in the model's README")

    def __post_init__(self) -> None:
        check_ranges(self, "data")


@dataclass(frozen=True)
class TokenizerConfig:
    """How text becomes token ids."""

    kind: Literal["bpe", "wordpiece", "unigram", "char", "byte"] = setting(
        "bpe", "which units: learnt subwords of three kinds, characters, or bytes"
    )
    vocab_size: int = setting(8000, "most entries in the vocabulary", least=16)
    shared: bool = setting(True, "one vocabulary for source and target")
    lowercase: bool = setting(False, "fold case; the output is lower case too")
    normalize: Literal["nfc", "nfkc", "none"] = setting("nfc", "Unicode normal form")
    path: str = setting("", "take this tokenizer.json instead of training one")

    def __post_init__(self) -> None:
        check_ranges(self, "tokenizer")


@dataclass(frozen=True)
class TrainConfig:
    """How the weights are found."""

    steps: int = setting(20_000, "optimiser steps at the most", least=1)
    seconds: float = setting(0.0, "stop after this much training time; 0: no limit", least=0)
    batch_tokens: int = setting(4096, "tokens of a batch's wider side, with padding", least=1)
    accumulate: int = setting(1, "batches summed into one step", least=1)
    seed: int = setting(0, "decides initial weights, order of data and dropout", least=0)
    start_from: str = setting(
        "", "a model folder to begin from, with its tokenizer and sizes, instead of fresh weights"
    )
    freeze: tuple[str, ...] = setting(
        (), "weights whose names begin so are left as they are, such as 'embedding', 'encoder'"
    )
    optimizer: Literal["adamw", "adam", "muon"] = setting(
        "adamw", "adamw: Adam with decoupled weight decay; muon: orthogonal updates in the blocks"
    )
    muon_lr: float = setting(
        0.02, "muon: peak learning rate of the blocks' matrices; lr is that of all else", least=0
    )
    lr: float = setting(0.0, "peak learning rate; 0: 1/√(d_model · warmup), 0.001 at most", least=0)
    schedule: Literal["inverse_sqrt", "cosine", "linear", "constant"] = setting(
        "inverse_sqrt", "how the learning rate falls after warm-up"
    )
    warmup: int = setting(1000, "steps over which the learning rate rises", least=0)
    beta1: float = setting(0.9, "Adam's memory of the gradient", least=0, most=0.9999)
    beta2: float = setting(0.98, "Adam's memory of its square", least=0, most=0.9999)
    epsilon: float = setting(1e-9, "Adam's ε", least=0)
    weight_decay: float = setting(0.0, "decay of AdamW and Muon, on matrices only", least=0)
    clip: float = setting(1.0, "largest gradient norm; 0: no clipping", least=0)
    label_smoothing: float = setting(0.1, "share of the target spread evenly", least=0, most=1)
    consistency: float = setting(
        0.0,
        "classify, tag, answer: each text is read twice with other dropout, and how far the two "
        "answers are apart counts so much (R-Drop)",
        least=0,
    )
    precision: Literal["auto", "float32", "bfloat16"] = setting(
        "auto", "of matrix products; auto: bfloat16 where there are instructions for it"
    )
    compile: Literal["auto", "on", "off"] = setting(
        "auto", "torch.compile; auto: on a GPU, where all batches have one shape"
    )
    packing: Literal["auto", "on", "off"] = setting(
        "auto", "sequences end to end instead of padded; auto: on a GPU"
    )
    device: str = setting("auto", "'cpu', 'cuda' or auto: a GPU where there is one")
    checkpoint_every: int = setting(500, "steps between checkpoints to resume from", least=1)
    valid_every: int = setting(500, "steps between validations", least=1)
    valid_bleu: bool = setting(
        True, "write out and score validation text at each validation (translations, answers)"
    )
    metric: Literal["loss", "bleu", "exact_match", "accuracy", "f1", "correlation"] = setting(
        "loss", "what 'best' and early stopping go by"
    )
    patience: int = setting(8, "validations without a new best before stopping; 0: never", least=0)
    average: int = setting(5, "average the weights of this many last validations", least=1)
    tensorboard: bool = setting(True, "write curves for TensorBoard, where it is installed")

    def __post_init__(self) -> None:
        check_ranges(self, "train")
        if self.metric in ("bleu", "exact_match") and not self.valid_bleu:
            raise UserError(
                f"train: metric = '{self.metric}' needs valid_bleu = true, which measures it."
            )


@dataclass(frozen=True)
class ChatConfig:
    """How the turns of a conversation are written; stored with the model."""

    template: Literal["auto", "plain", "alpaca", "chatml"] = setting(
        "auto",
        "auto: that of the model which the run begins from, or else plain: 'User:' and "
        "'Assistant:'; the others are other people's forms",
    )
    system: str = setting("", "instead: a system message, with '{content}' in it")
    user: str = setting("", "instead: a user's turn")
    assistant: str = setting("", "instead: an answer; what follows '{content}' ends it")


@dataclass(frozen=True)
class Recipe:
    """A whole run; every field has a default that works."""

    task: Task = "translate"
    preset: str = "transformer-small"
    data: DataConfig = field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    model: Mapping[str, Any] = field(default_factory=dict)
    train: TrainConfig = field(default_factory=TrainConfig)
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    chat: ChatConfig = field(default_factory=ChatConfig)
    mask: MaskConfig = field(default_factory=MaskConfig)
    denoise: DenoiseConfig = field(default_factory=DenoiseConfig)
    classify: ClassifyConfig = field(default_factory=ClassifyConfig)
    tag: TagConfig = field(default_factory=TagConfig)
    answer: AnswerConfig = field(default_factory=AnswerConfig)
    embed: EmbedConfig = field(default_factory=EmbedConfig)
    teacher: TeacherConfig = field(default_factory=TeacherConfig)


SECTIONS = {
    "data": DataConfig,
    "tokenizer": TokenizerConfig,
    "train": TrainConfig,
    "decode": DecodeConfig,
    "chat": ChatConfig,
    "mask": MaskConfig,
    "denoise": DenoiseConfig,
    "classify": ClassifyConfig,
    "tag": TagConfig,
    "answer": AnswerConfig,
    "embed": EmbedConfig,
    "teacher": TeacherConfig,
}


def load_recipe(path: Path, overrides: Iterable[str] = ()) -> Recipe:
    """Read a recipe from a TOML file, with `section.key=value` overrides from the command line."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"There is no recipe {path}; check the path.") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}).") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is not valid TOML: {error}.") from error
    for override in overrides:
        _override(values, override)
    return recipe_from(values, str(path))


def recipe_from(values: Mapping[str, Any], where: str = "recipe") -> Recipe:
    """Build a recipe from plain values, as they stand in a TOML file."""
    known = {"task", "model", *SECTIONS}
    for name in values:
        if name not in known:
            raise UserError(f"{where}: unknown key {name!r}{suggestion(name, known)}")
    for name in values.keys() - {"task"}:
        if not isinstance(values[name], Mapping):
            raise UserError(f"{where}: {name} must be a section, [{name}], with keys under it.")
    task = from_mapping(Recipe, {k: v for k, v in values.items() if k == "task"}, where).task
    usual = usual_settings(task, values)
    sections: dict[str, Any] = {
        name: from_mapping(
            cls, {**usual.get(name, {}), **values.get(name, {})}, f"{where}: [{name}]"
        )
        for name, cls in SECTIONS.items()
    }
    model = {**usual.get("model", {}), **values.get("model", {})}
    name = model.pop("preset", Recipe.preset)
    if not isinstance(name, str) or name not in PRESETS:
        known_presets = suggestion(str(name), PRESETS)
        raise UserError(f"{where}: [model]: unknown preset {name!r}{known_presets}")
    # Checked now, so that a mistake shows before a tokenizer is trained
    config = ModelConfig.from_dict({**PRESETS[name], **model}, f"{where}: [model]")
    _check_task(task, config, sections, where)
    return Recipe(task=task, preset=name, model=model, **sections)


def _check_task(task: Task, model: ModelConfig, sections: Mapping[str, Any], where: str) -> None:
    """Check that the parts of a recipe are of one kind."""
    train, kind = sections["train"], sections["classify"].kind
    if train.consistency and task not in ("classify", "tag", "answer"):
        raise UserError(
            f"{where}: [train]: consistency is for classify, tag and answer, but the task is "
            f"{task!r}; leave it out."
        )
    if sections["teacher"].models and (task, kind) != ("classify", "class"):
        raise UserError(
            f"{where}: [teacher]: models teach task = 'classify' with one class of several; leave "
            f"them out."
        )
    family = FAMILIES.get(task, "encoder")
    if model.family != family:
        raise UserError(
            f"{where}: [model]: task = '{task}' needs a model of family '{family}', but this one "
            f"is of '{model.family}'; choose another preset, or another task."
        )
    if model.patch_size and task != "classify":
        raise UserError(
            f"{where}: [model]: task = '{task}' reads text, but this model reads images, and an "
            f"image has no words to hide or to label; choose another preset, or another task."
        )
    measured = ("loss", *MEASURED.get(task, ()))
    if task == "classify":
        measured = ("loss", "correlation") if kind == "number" else ("loss", "accuracy", "f1")
    if train.metric not in measured:
        raise UserError(
            f"{where}: [train]: metric = '{train.metric}' is not measured by task = '{task}'; "
            f"use one of: {', '.join(map(repr, measured))}."
        )


def recipe_to_dict(recipe: Recipe) -> dict[str, Any]:
    """The recipe as plain values that `recipe_from` reads back."""
    values = dataclasses.asdict(recipe)
    values["model"] = {"preset": values.pop("preset"), **values["model"]}
    return values


def _override(values: dict[str, Any], override: str) -> None:
    """Apply one `section.key=value`; the value is TOML, or else plain text."""
    path, equals, text = override.partition("=")
    *sections, key = path.strip().split(".")
    if not equals or not key:
        raise UserError(f"--set {override!r} must have the form section.key=value.")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise UserError(f"--set {override!r}: {section} is not a section.")
    values[key] = value
