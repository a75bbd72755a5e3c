"""The heads of foreign checkpoints: their class names, tasks and labels."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from qkv.config import ModelConfig
from qkv.convert.architectures.architecture import Architecture, Values, wanted
from qkv.errors import UserError
from qkv.text import tagging

TASKS = {
    "none": "embed",
    "masked": "fill",
    "pairs": "fill",
    "sequence": "classify",
    "token": "tag",
    "answer": "answer",
    "image": "classify",
    "seq2seq": "translate",
    "causal": "generate",
}
ONE_LABEL = "single_label_classification"
KINDS = {ONE_LABEL: "class", "multi_label_classification": "classes", "regression": "number"}
MOST_LABELS = 1_000_000  # more are a mistake
BILINEAR = 2  # by Pillow's numbers


def head_of(architecture: Architecture, config: Mapping[str, Any], names: frozenset[str]) -> str:
    """Which of our heads a checkpoint has."""
    given = config.get("architectures") or []
    known = {name: head for head, name in architecture.classes.items()}
    bodies = *architecture.bodies, *architecture.headless
    known |= dict.fromkeys(bodies, next(iter(architecture.classes)))
    if not given:
        return "none" if "none" in architecture.classes else next(iter(architecture.classes))
    if given[0] not in known:
        raise UserError(
            f"config.json: the architecture is {given[0]}, but of {architecture.name} only "
            f"{', '.join(known)} can be read."
        )
    if does := architecture.headless.get(given[0]):
        warnings.warn(
            f"The head of {given[0]}, which {does}, is left out, and is not in what is saved: the "
            f"model gives vectors of texts, and runs of other tasks can start from it.",
            stacklevel=2,
        )
    head = known[given[0]]
    if head == "masked" and "pairs" in architecture.classes:
        pairs = [name for name in names if "seq_relationship" in name or "sop_classifier" in name]
        return "pairs" if pairs else head  # what the model was pre-trained with is often kept
    return head


def head_values(head: str, config: Mapping[str, Any]) -> Values:
    """What our config says of a head."""
    if head in ("masked", "pairs"):
        return {"head": "masked", "pair_head": head == "pairs"}
    if head in ("sequence", "image"):
        return {"head": "sequence", "n_labels": len(read_labels(config))}
    if head in ("token", "answer"):
        return {"head": "token", "n_labels": 2 if head == "answer" else len(read_labels(config))}
    return {}


def head_to_write(task: str, config: ModelConfig) -> str:
    """The head that a model of ours has in their words."""
    if config.family != "encoder":
        return "seq2seq" if config.family == "encoder-decoder" else "causal"
    if config.head == "sequence":
        return "image" if config.patch_size else "sequence"
    if config.head == "token":
        return "answer" if task == "answer" else "token"
    if config.head == "masked":
        return "pairs" if config.pair_head else "masked"
    return "none"


def read_labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The labels of a head, in the order of their numbers."""
    named = config.get("id2label")
    if not named:
        count = config.get("num_labels", 2)
        if count > MOST_LABELS:
            raise UserError(
                f"config.json: num_labels is {count:,}, but a head may have {MOST_LABELS:,} labels."
            )
        return tuple(f"LABEL_{number}" for number in range(count))
    labels = tuple(str(named[key]) for key in sorted(named, key=int))
    if len(set(labels)) < len(labels) or not all(labels):
        raise UserError(
            "config.json: id2label names a label twice, or one is empty; give each number a name "
            "of its own there."
        )
    return labels


def read_section(head: str, config: Mapping[str, Any], images: Mapping[str, Any]) -> Values:
    """What the task knows beside the model: labels, and how they are to be read."""
    labels = read_labels(config) if head in ("image", "sequence", "token") else ()
    if head == "image":
        wanted(config, "problem_type", (ONE_LABEL,), ONE_LABEL)
        _tell_what_is_missing(images)
        return {"classify": {"labels": labels, **_scale(images, config.get("num_channels", 3))}}
    if head == "none" and config.get("model_type") == "vit":  # for whoever trains on from it
        return {"classify": _scale(images, config.get("num_channels", 3))}
    if head == "sequence":
        guess = "regression" if len(labels) == 1 else ONE_LABEL
        kind = KINDS[wanted(config, "problem_type", KINDS, guess)]
        if kind == "number" and len(labels) > 1:
            raise UserError(
                f"config.json: problem_type is 'regression' and id2label (or num_labels) has "
                f"{len(labels)} outputs, but only one number can be given; take a model whose "
                f"num_labels is 1."
            )
        return {"classify": {"labels": labels, "kind": kind}}
    if head == "token":
        return {"tag": {"labels": labels, "scheme": tagging.guess_scheme([labels]) or "none"}}
    return {}


def _scale(images: Mapping[str, Any], n_channels: int) -> Values:
    """How pixels between 0 and 1 are scaled, though white may be another number there."""
    white = 255 * (images.get("rescale_factor", 1 / 255) if images.get("do_rescale", True) else 1)
    mean, deviation = 0.0, 1.0
    if images.get("do_normalize", True):
        mean, deviation = (images.get(name) or 0.5 for name in ("image_mean", "image_std"))
    found = {}
    for name, given in (("mean", mean), ("deviation", deviation)):
        values = given if isinstance(given, list) else [given] * n_channels
        found[name] = [value / white for value in values]
    return found


def _tell_what_is_missing(images: Mapping[str, Any]) -> None:
    usual = {"resample": BILINEAR, "do_center_crop": False}
    ignored = [
        f"{name} = {images[name]}"
        for name, value in usual.items()
        if images.get(name) not in (None, value)
    ]
    if ignored:
        warnings.warn(
            f"preprocessor_config.json says {', '.join(ignored)}, but here whole images are scaled "
            f"bilinearly; to have it so, give arrays of the model's size.",
            stacklevel=2,
        )


def write_labels(head: str, section: Mapping[str, Any]) -> Values:
    """A head's labels and their kind in their words."""
    if head == "answer":
        return {}
    labels = section.get("labels", ())
    if not labels:
        return {}
    found: Values = {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
        "num_labels": len(labels),
    }
    kinds = {kind: name for name, kind in KINDS.items()}
    said = kinds[section.get("kind", "class")]
    if head == "sequence" and (said != ONE_LABEL or len(labels) > 1):  # which they refuse of one
        found["problem_type"] = said
    return found
