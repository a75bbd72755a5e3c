"""Classification: texts, or pairs of texts, in; labels with probabilities, or a number, out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

import torch
from torch import Tensor

from qkv.config.fields import check_ranges, setting
from qkv.convert.model_folder import StoredModel, load_section
from qkv.data import Framed
from qkv.errors import UserError
from qkv.model import Encoder
from qkv.tasks.reading import Reader, averaged, by_text, flattened, load_encoder, save_encoder
from qkv.tasks.task_object import TaskObject
from qkv.tasks.texts import Progress, check_several, check_text
from qkv.text import Tokenizer

if TYPE_CHECKING:
    from qkv.inspect import Trace

Texts = tuple[str, ...]


@dataclass(frozen=True)
class Classes:
    """What a classifier predicts, and how long texts are read; stored with the model."""

    labels: tuple[str, ...] = ()
    kind: Literal["class", "classes", "number"] = "class"
    threshold: float = setting(0.5, "classes: give those at least this probable", least=0)
    overlap: int = setting(64, "tokens that neighbouring windows over a long text share", least=0)
    mean: float = 0.0  # number: the model's output times the deviation, plus the mean
    deviation: float = 1.0
    n_texts: int = setting(0, "1: single texts are labelled; 2: pairs; 0: either", least=0, most=2)
    frame: tuple[tuple[int, ...], ...] = ()
    """Ids before, between and after texts, where these are not BOS, EOS and EOS."""

    def __post_init__(self) -> None:
        check_ranges(self, "classify")
        if len(self.frame) not in (0, 3):
            raise UserError(
                f"classify: frame has {len(self.frame)} lists of ids, but there must be three: "
                f"before, between and after texts."
            )


@dataclass(frozen=True)
class Classification:
    """The labels of one text, or its number; of a blank text, neither."""

    labels: Texts  # the likeliest one; any number of them for a classifier of several classes
    probabilities: dict[str, float] = field(default_factory=dict)  # of every label
    value: float | None = None  # where the model predicts a number

    @property
    def label(self) -> str:
        """The labels, or the number, as text."""
        return f"{self.value:.6g}" if self.value is not None else "|".join(self.labels)

    @property
    def probability(self) -> float | None:
        """The probability of the first label; None where there is none."""
        return self.probabilities[self.labels[0]] if self.labels else None


class Classifier(TaskObject):
    """An encoder with a head of labels."""

    def __init__(self, model: Encoder, tokenizer: Tokenizer, classes: Classes) -> None:
        self.model, self.tokenizer, self.classes = model, tokenizer, classes
        self.reader = Reader(model, tokenizer, classes.frame)

    def _labels(self) -> tuple[str, ...]:
        return self.classes.labels

    @classmethod
    def _of(cls, folder: StoredModel, device: torch.device) -> Classifier:
        model, tokenizer = load_encoder(folder, device)
        classes = load_section(folder, "classify", Classes)
        n_labels = model.config.n_labels if model.config.head == "sequence" else 0
        check_labels(classes.labels, n_labels, folder)
        if classes.kind == "number" and n_labels > 1:
            raise UserError(f"{folder} gives {n_labels} numbers, not one; restore config.json.")
        return cls(model, tokenizer, classes)

    def save(self, folder: str | Path) -> None:
        """Write a model folder."""
        classes = dataclasses.asdict(self.classes)
        save_encoder(folder, "classify", self.model, self.tokenizer, classify=classes)

    @overload
    def classify(  # type: ignore[overload-overlap]  # a str is an iterable of strings too
        self, texts: str | Texts, threshold: float | None = None, progress: Progress | None = None
    ) -> Classification: ...
    @overload
    def classify(
        self,
        texts: Iterable[str | Texts],
        threshold: float | None = None,
        progress: Progress | None = None,
    ) -> list[Classification]: ...
    def classify(
        self,
        texts: str | Texts | Iterable[str | Texts],
        threshold: float | None = None,
        progress: Progress | None = None,
    ) -> Classification | list[Classification]:
        """Label a text (or a tuple of two, a pair), or each of many; a blank one has no label."""
        if isinstance(texts, str | tuple):
            return self.classify([texts], threshold, progress)[0]
        self._check_threshold(threshold)
        whole = _as_tuples(texts)
        found = [Classification(())] * len(whole)
        rows = [row for row, parts in enumerate(whole) if any(part.strip() for part in parts)]
        if progress and len(rows) < len(whole):
            progress(len(whole) - len(rows))
        logits = self.logits([whole[row] for row in rows], progress)
        for row, output in zip(rows, logits, strict=True):
            found[row] = self._read(output, threshold)
        return found

    def trace(
        self, source: str | Texts | Sequence[str | Texts], target: str | Sequence[str] | None = None
    ) -> Trace:
        """Trace the pass that labels a text (or a pair); `target` is the true label."""
        from qkv.inspect.trace.from_task import trace_classes

        return trace_classes(self, source, target)

    def logits(
        self, texts: Iterable[str | Texts], progress: Progress | None = None
    ) -> list[Tensor]:
        """The head's output for each text, (C,), averaged over the windows of a long one."""
        whole = _as_tuples(texts)
        framed, owners = self.frame(whole)
        if not framed:
            return []
        advance = progress and by_text(progress, len(whole), len(framed))
        outputs = torch.stack(self.reader.run(framed, progress=advance))
        if self.classes.kind == "number":
            return list(averaged(outputs, owners, len(whole)))
        one_class = self.classes.kind == "class"
        probable = outputs.softmax(-1) if one_class else outputs.sigmoid()
        means = averaged(probable, owners, len(whole))
        return list(means.log() if one_class else torch.logit(means, eps=1e-7))

    def frame(self, texts: Sequence[Texts]) -> tuple[list[Framed], list[int]]:
        """Texts as the model reads them, long ones in windows, and each window's text by index."""
        self._check_sizes({len(parts) for parts in texts})
        flat = iter(self.reader.encode(part for parts in texts for part in parts))
        encoded = ([next(flat) for _ in parts] for parts in texts)
        room, overlap = self.reader.room(), self.classes.overlap
        return flattened(
            self._pair(*ids) if len(ids) == 2 else self.reader.windows(ids[0], room, overlap)
            for ids in encoded
        )

    def _check_threshold(self, threshold: float | None) -> None:
        if threshold is not None and self.classes.kind != "classes":
            what = "a number" if self.classes.kind == "number" else "the one likeliest class"
            raise UserError(
                f"This model gives {what}; threshold is for several classes at once, so leave it "
                f"out."
            )
        if threshold is not None and not 0 <= threshold <= 1:
            raise UserError(f"threshold is {threshold}, but must be a probability, from 0 to 1.")

    def _check_sizes(self, sizes: set[int]) -> None:
        if not sizes <= {1, 2}:
            raise UserError(f"A classifier reads one text or a pair, not {max(sizes)} texts.")
        learnt = self.classes.n_texts
        if learnt and not sizes <= {learnt}:
            known, given = ("single texts", "one") if learnt == 1 else ("pairs of texts", "two")
            raise UserError(
                f"This model has learnt to label {known} alone; give {given} at a time."
            )
        if 2 in sizes and self.reader.room(pair=True) < 2:
            length = self.model.config.max_length
            raise UserError(f"A model of max_length {length} has no room for a pair of texts.")

    def _pair(self, first: list[int], second: list[int]) -> list[Framed]:
        """Frame a pair; if too long, the longer text is cut at its end, as `transformers` does."""
        room = self.reader.room(pair=True)
        less = min(len(first), len(second), room // 2)
        more = room - less
        sizes = (more, less) if len(first) > len(second) else (less, more)
        return [self.reader.frame(first[: sizes[0]], second[: sizes[1]])]

    def _read(self, logits: Tensor, threshold: float | None) -> Classification:
        classes = self.classes
        if classes.kind == "number":
            return Classification((), {}, float(logits[0]) * classes.deviation + classes.mean)
        probable = logits.softmax(-1) if classes.kind == "class" else logits.sigmoid()
        found = dict(zip(classes.labels, probable.tolist(), strict=True))
        ranked = sorted(found, key=lambda label: -found[label])
        if classes.kind == "class":
            return Classification((ranked[0],), found)
        least = classes.threshold if threshold is None else threshold
        return Classification(tuple(label for label in ranked if found[label] >= least), found)


def _as_tuples(texts: Iterable[str | Texts]) -> list[Texts]:
    """Texts and pairs as tuples; what is neither is refused by its position."""
    check_several(texts)
    found = [(text,) if isinstance(text, str) else text for text in texts]
    for number, parts in enumerate(found, start=1):
        if not isinstance(parts, tuple | list):
            check_text(parts, number)
        for part in parts:
            check_text(part, number)
    return [tuple(map(str, parts)) for parts in found]


def check_labels(labels: Texts, n_labels: int, folder: StoredModel) -> None:
    """Refuse a model folder whose head does not have one label for each output."""
    if not n_labels:
        raise UserError(f"{folder} has no head of labels for its task; restore config.json.")
    if len(labels) != n_labels:
        raise UserError(
            f"{folder} names {len(labels)} labels, but its head has {n_labels}; restore "
            f"config.json."
        )
    if len(set(labels)) < len(labels) or not all(labels):
        raise UserError(f"{folder} names a label twice, or one is empty; restore config.json.")
