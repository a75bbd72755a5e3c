"""What each task is given unless a recipe says otherwise, and what it needs and measures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Task = Literal[
    "translate", "generate", "instruct", "fill", "denoise", "classify", "tag", "answer", "embed"
]

_LANGUAGE_TRAINING = {
    "label_smoothing": 0.0,
    "weight_decay": 0.1,
    "schedule": "cosine",
    "warmup": 100,
    "beta2": 0.95,
    "epsilon": 1e-8,
    "average": 1,
}
# Devlin et al. 2019: a small rate that rises briefly and falls to nothing, few epochs
_FINE_TUNING = {
    "label_smoothing": 0.0,
    "weight_decay": 0.01,
    "schedule": "linear",
    "warmup": 50,
    "beta2": 0.999,
    "epsilon": 1e-8,
    "average": 1,
    "lr": 5e-5,
    "steps": 1000,
    "valid_every": 100,
    "checkpoint_every": 200,
    "batch_tokens": 2048,
}
_UNDERSTANDING: dict[str, dict[str, Any]] = {
    "data": {"max_length": 0},
    "model": {"preset": "bert-mini"},
    "train": _FINE_TUNING,
}
TASK_DEFAULTS: dict[str, dict[str, dict[str, Any]]] = {
    "translate": {},
    "generate": {
        "data": {"max_length": 0},
        "model": {"preset": "llama-mini"},
        "train": {**_LANGUAGE_TRAINING, "batch_tokens": 16_384},
        "decode": {"beams": 1, "sample": True, "temperature": 0.8, "top_p": 0.95},
    },
    "instruct": {
        "data": {"max_length": 0},
        "model": {"preset": "llama-mini"},
        "train": {**_LANGUAGE_TRAINING, "steps": 2000, "lr": 3e-4, "valid_every": 100},
        "decode": {"beams": 1},
    },
    "fill": {
        "data": {"max_length": 0, "documents": "line"},
        "model": {"preset": "bert-mini"},
        "train": {
            **_LANGUAGE_TRAINING,
            "schedule": "linear",
            "warmup": 500,
            "weight_decay": 0.01,
            "batch_tokens": 16_384,
            "lr": 5e-4,
        },
    },
    "denoise": {
        "data": {"max_length": 0, "documents": "line"},
        "train": {**_LANGUAGE_TRAINING, "warmup": 1000, "batch_tokens": 16_384, "lr": 5e-4},
    },
    "classify": {**_UNDERSTANDING, "train": {**_FINE_TUNING, "metric": "accuracy"}},
    "tag": {**_UNDERSTANDING, "train": {**_FINE_TUNING, "metric": "f1"}},
    "answer": {**_UNDERSTANDING, "train": {**_FINE_TUNING, "metric": "f1"}},
    "embed": _UNDERSTANDING,
}
"""What differs, by task, from the defaults of the settings."""
FAMILIES: dict[str, str] = {
    "translate": "encoder-decoder",
    "denoise": "encoder-decoder",
    "generate": "decoder",
    "instruct": "decoder",
}
"""The family that a task needs; all others need an encoder."""
MEASURED: dict[str, tuple[str, ...]] = {
    "translate": ("bleu", "exact_match"),
    "instruct": ("exact_match",),
    "fill": ("accuracy",),
    "embed": ("accuracy",),
    "tag": ("f1", "accuracy"),
    "answer": ("f1", "exact_match"),
}
"""What a task can be judged by beside its loss."""


def usual_settings(task: Task, values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The defaults of a task; where it is to find a number, accuracy says nothing."""
    usual = TASK_DEFAULTS[task]
    if task == "classify" and values.get("classify", {}).get("kind") == "number":
        return {**usual, "train": {**usual["train"], "metric": "correlation"}}
    return usual
