"""Tasks as records: what each reads, which model it needs, what it measures and its defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

from qkv.config.model import Family

Task = Literal[
    "translate",
    "generate",
    "instruct",
    "prefer",
    "fill",
    "denoise",
    "classify",
    "tag",
    "answer",
    "embed",
]
Settings = dict[str, dict[str, Any]]

# [data] settings that belong together: each names files, with valid_… and test_… beside it.
_PAIRS = ("source", "target", "pairs")
_HELD_OUT = ("valid_size", "licence")
_READ = ("text_field", "template", "documents", "bos")
_TEXT = (*_READ, "valid_share", "processes", "max_length", "licence")
_EXAMPLES = ("n_examples", *_HELD_OUT)
# [train] settings that only some objectives or batches know.
SPECIAL_TRAIN = ("label_smoothing", "consistency", "packing", "valid_bleu")

_LANGUAGE: dict[str, Any] = {
    "label_smoothing": 0.0,
    "weight_decay": 0.1,
    "schedule": "cosine",
    "warmup": 100,
    "beta2": 0.95,
    "epsilon": 1e-8,
    "average": 1,
}
# Devlin et al. 2019: a small rate that rises briefly and falls to nothing, few epochs
_FINE_TUNING: dict[str, Any] = {
    **_LANGUAGE,
    "weight_decay": 0.01,
    "schedule": "linear",
    "warmup": 50,
    "beta2": 0.999,
    "lr": 5e-5,
    "steps": 1000,
    "valid_every": 100,
    "checkpoint_every": 200,
    "batch_tokens": 2048,
}


@dataclass(frozen=True)
class TaskSpec:
    """One task: the settings that it reads, its model, its metrics and its defaults."""

    about: str
    """What a trained model is, for its README."""
    usage: str
    """The command that tries a model folder, `{}`."""
    family: Family
    files: tuple[str, ...]
    """Settings that name its files; each has a valid_… and a test_… beside it."""
    data: tuple[str, ...]
    """Further settings of [data] that it reads."""
    train: tuple[str, ...] = ()
    """Those of `SPECIAL_TRAIN` that it reads; all others of [train] it reads in any case."""
    sections: tuple[str, ...] = ()
    """Further sections of a recipe."""
    objective: str = ""
    """The loss: a function of `qkv.training.objectives`."""
    result: str = ""
    """The object that `qkv.load` gives."""
    head: str = "none"
    """The head of an encoder, as `ModelConfig.head`."""
    n_labels: int = 0
    """Outputs of that head; where the data decides, how many are usual."""
    length: int = 256
    """Tokens of a typical sequence; 0: text is cut into windows as long as the model allows."""
    metrics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Scores logged at each validation beside the loss: name in the log → names of the score."""
    defaults: Settings = field(default_factory=dict)
    """What differs from the defaults of the settings."""

    def reads(self, section: str, name: str) -> bool:
        """Whether the task looks at a setting."""
        if section == "data":
            file = name.removeprefix("valid_").removeprefix("test_")
            return name in self.data or file in self.files
        if section == "train":
            return name not in SPECIAL_TRAIN or name in self.train
        if section == "tokenizer":
            return name != "shared" or self.family == "encoder-decoder"
        return section in ("model", *self.sections)


# What puts a head on an encoder shares its data, its preset and its training.
_LABELLED = partial(TaskSpec, family="encoder", files=("examples",))


def _fine_tuning(**train: Any) -> Settings:
    return {"model": {"preset": "bert-mini"}, "train": {**_FINE_TUNING, **train}}


def _language_model(decode: Mapping[str, Any] | None = None, **train: Any) -> Settings:
    return {
        "data": {"max_length": 0},
        "model": {"preset": "llama-mini"},
        "train": {**_LANGUAGE, **train},
        "decode": {"beams": 1, **(decode or {})},
    }


TASKS: dict[str, TaskSpec] = {
    "translate": TaskSpec(
        about="a translation model",
        usage='qkv translate --model {} "…"',
        family="encoder-decoder",
        files=_PAIRS,
        data=(
            "corpus",
            "synthetic",
            "repeat",
            "source_field",
            "target_field",
            "max_length",
            "max_ratio",
            "bpe_dropout",
            *_HELD_OUT,
        ),
        train=SPECIAL_TRAIN,
        sections=("decode",),
        objective="next_token",
        result="Translator",
        length=32,
        metrics={"bleu": ("BLEU",), "exact_match": ("exact match",)},
    ),
    "generate": TaskSpec(
        about="a language model",
        usage='qkv generate --model {} "…"',
        family="decoder",
        files=("text",),
        data=(*_TEXT, "across"),
        train=("label_smoothing", "consistency", "packing"),
        sections=("decode",),
        objective="next_token",
        result="LanguageModel",
        length=0,
        metrics={"perplexity": ("perplexity",), "bits_per_byte": ("bits per byte",)},
        defaults=_language_model(
            {"sample": True, "temperature": 0.8, "top_p": 0.95}, batch_tokens=16_384
        ),
    ),
    "instruct": TaskSpec(
        about="a language model that answers",
        usage="qkv chat --model {}",
        family="decoder",
        files=("records",),
        data=("template", "bos", "max_length", *_HELD_OUT),
        train=SPECIAL_TRAIN,
        sections=("decode", "chat"),
        objective="next_token",
        result="LanguageModel",
        metrics={"exact_match": ("exact match",)},
        defaults=_language_model(steps=2000, lr=3e-4, valid_every=100),
    ),
    "prefer": TaskSpec(
        about="a language model that answers as people prefer",
        usage="qkv chat --model {}",
        family="decoder",
        files=("records",),
        data=("max_length", *_HELD_OUT),
        train=("label_smoothing",),
        sections=("decode", "chat", "prefer"),
        objective="preference",
        result="LanguageModel",
        metrics={"preferred": ("preferred",)},
        defaults=_language_model(
            weight_decay=0.0,
            schedule="linear",
            warmup=20,
            steps=300,
            lr=5e-6,
            valid_every=50,
            checkpoint_every=100,
        ),
    ),
    "fill": TaskSpec(
        about="an encoder",
        usage='qkv fill --model {} "… <mask> …"',
        family="encoder",
        files=("text",),
        data=_TEXT,
        train=("label_smoothing", "packing"),
        sections=("mask", "embed"),
        objective="masked_tokens",
        result="Encoder",
        head="masked",
        length=0,
        metrics={"accuracy": ("accuracy",), "pair_accuracy": ("pair accuracy",)},
        defaults={
            "data": {"max_length": 0, "documents": "line"},
            "model": {"preset": "bert-mini"},
            "train": {
                **_LANGUAGE,
                "schedule": "linear",
                "warmup": 500,
                "weight_decay": 0.01,
                "batch_tokens": 16_384,
                "lr": 5e-4,
            },
        },
    ),
    "denoise": TaskSpec(
        about="a pre-trained encoder-decoder",
        usage="qkv train RECIPE.toml --set train.start_from={}",
        family="encoder-decoder",
        files=("text",),
        data=_TEXT,
        train=("label_smoothing", "packing"),
        sections=("decode", "denoise"),
        objective="next_token",
        result="Translator",
        length=0,
        metrics={"perplexity": ("perplexity",)},
        defaults={
            "data": {"max_length": 0, "documents": "line"},
            "train": {**_LANGUAGE, "warmup": 1000, "batch_tokens": 16_384, "lr": 5e-4},
        },
    ),
    "classify": _LABELLED(
        about="a classifier",
        usage='qkv classify --model {} "…"',
        data=(*_EXAMPLES, "label_field", "text_field"),
        train=("label_smoothing", "consistency"),
        sections=("classify", "teacher"),
        objective="one_class",
        result="Classifier",
        head="sequence",
        n_labels=2,
        length=64,
        metrics={"accuracy": ("accuracy",), "f1": ("macro F1",), "correlation": ("Pearson",)},
        defaults=_fine_tuning(metric="accuracy"),
    ),
    "tag": _LABELLED(
        about="a tagger",
        usage='qkv tag --model {} "…"',
        data=_EXAMPLES,
        train=("label_smoothing", "consistency"),
        sections=("tag",),
        objective="token_labels",
        result="Tagger",
        head="token",
        n_labels=9,
        length=32,
        metrics={"f1": ("entity F1", "macro F1"), "accuracy": ("token accuracy", "accuracy")},
        defaults=_fine_tuning(metric="f1"),
    ),
    "answer": _LABELLED(
        about="a model that finds answers",
        usage='qkv answer --model {} --context FILE "…?"',
        data=_EXAMPLES,
        train=("consistency",),
        sections=("answer",),
        objective="spans",
        result="Answerer",
        head="token",
        n_labels=2,  # an answer starts here, an answer ends here
        metrics={"f1": ("F1",), "exact_match": ("exact match",)},
        defaults=_fine_tuning(metric="f1"),
    ),
    "embed": _LABELLED(
        about="an encoder of sentences",
        usage='qkv embed --model {} "…"',
        data=(*_EXAMPLES, "label_field", "text_field"),
        sections=("embed",),
        objective="contrast",
        result="Encoder",
        length=32,
        metrics={"accuracy": ("accuracy",)},
        defaults=_fine_tuning(),
    ),
}
assert tuple(TASKS) == get_args(Task)


def default_settings(task: str, values: Mapping[str, Any]) -> Settings:
    """Return the defaults of a task; a classifier that gives a number has no accuracy."""
    defaults = TASKS[task].defaults
    if task == "classify" and values.get("classify", {}).get("kind") == "number":
        return {**defaults, "train": {**defaults["train"], "metric": "correlation"}}
    return defaults
