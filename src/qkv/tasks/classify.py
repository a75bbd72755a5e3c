"""Classification: texts, or pairs of texts, in; labels with probabilities, or a number, out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from qkv.config.fields import check_ranges, setting
from qkv.convert.model_folder import Where, load_section
from qkv.data import Framed
from qkv.data.overlaps import windows
from qkv.errors import UserError
from qkv.model import Encoder
from qkv.tasks.reading import Progress, Reader, by_text, check_text, load_encoder, save_encoder
from qkv.text import Tokenizer

if TYPE_CHECKING:
    from qkv.inspect import Trace

Texts = tuple[str, ...]


@dataclass(frozen=True)
class Classes:
    """What a classifier says, and how long texts are read; stored with the model."""

    labels: tuple[str, ...] = ()
    kind: Literal["class", "classes", "number"] = "class"
    threshold: float = setting(0.5, "classes: those at least this probable are given", least=0)
    overlap: int = setting(64, "tokens that the windows over a long text share", least=0)
    mean: float = 0.0  # number: what the model says, times the deviation, plus the mean
    deviation: float = 1.0
    n_texts: int = setting(0, "1: single texts are labelled; 2: pairs; 0: either", least=0, most=2)
    frame: tuple[tuple[int, ...], ...] = ()
    """The ids before, between and after texts, where they are not BOS, EOS and EOS."""

    def __post_init__(self) -> None:
        check_ranges(self, "classify")
        if len(self.frame) not in (0, 3):
            raise UserError(
                f"classify: frame has {len(self.frame)} lists of ids, but there must be three: "
                f"before, between and after texts."
            )


@dataclass(frozen=True)
class Classification:
    """What is said of one text."""

    labels: Texts  # the likeliest one; any number, where classes come many at once
    probabilities: dict[str, float] = field(default_factory=dict)  # of every label
    value: float | None = None  # where a number is asked for

    @property
    def label(self) -> str:
        """The answer in one word."""
        return f"{self.value:.6g}" if self.value is not None else "|".join(self.labels)

    @property
    def probability(self) -> float | None:
        """How sure the answer is, as far as the model's probabilities can be trusted."""
        return self.probabilities[self.labels[0]] if self.labels else None


class Classifier:
    """An encoder with a head of labels."""

    def __init__(self, model: Encoder, tokenizer: Tokenizer, classes: Classes) -> None:
        self.model, self.tokenizer, self.classes = model, tokenizer, classes
        self.reader = Reader(model, tokenizer, classes.frame)

    @classmethod
    def load(cls, folder: Where, device: torch.device | None = None) -> Classifier:
        """Read a model folder."""
        model, tokenizer = load_encoder(folder, device)
        classes = load_section(folder, "classify", Classes)
        n_labels = model.config.n_labels if model.config.head == "sequence" else 0
        check_labels(classes.labels, n_labels, folder)
        if classes.kind == "number" and n_labels > 1:
            raise UserError(f"{folder} gives {n_labels} numbers, not one; restore config.json.")
        return cls(model, tokenizer, classes)

    def save(self, folder: Path) -> None:
        """Make a folder a model folder of this."""
        classes = dataclasses.asdict(self.classes)
        save_encoder(folder, "classify", self.model, self.tokenizer, classify=classes)

    def classify(
        self,
        texts: str | Texts | Sequence[str | Texts],
        threshold: float | None = None,
        progress: Progress | None = None,
    ) -> Any:
        """Label one text (or a tuple of two, a pair), or a list of them in one go."""
        if isinstance(texts, str | tuple):
            return self.classify([texts], threshold)[0]
        if not texts:
            return []
        logits = torch.stack(self.logits(texts, progress))
        if self.classes.kind == "number":
            values = logits[:, 0].tolist()
            mean, deviation = self.classes.mean, self.classes.deviation
            return [Classification((), {}, value * deviation + mean) for value in values]
        one_class = self.classes.kind == "class"
        probable = logits.softmax(-1) if one_class else logits.sigmoid()
        return [self._read(row, threshold) for row in probable.tolist()]

    def trace(
        self, source: str | Texts | Sequence[str | Texts], target: str | Sequence[str] | None = None
    ) -> Trace:
        """Look into the pass that labels a text (or a pair); `target` is the true label."""
        from qkv.inspect.tracing import trace_classes

        return trace_classes(self, source, target)

    def logits(
        self, texts: Sequence[str | Texts], progress: Progress | None = None
    ) -> list[Tensor]:
        """What the head says of each text, (C,), averaged over the windows of a long one."""
        framed, owners = self.frame([(one,) if isinstance(one, str) else one for one in texts])
        advance = progress and by_text(progress, len(texts), len(framed))
        if not framed:
            return []
        said = torch.stack(self.reader.run(framed, progress=advance))
        if self.classes.kind == "number":
            return list(_averaged(said, owners, len(texts)))
        one_class = self.classes.kind == "class"
        means = _averaged(said.softmax(-1) if one_class else said.sigmoid(), owners, len(texts))
        return list(means.log() if one_class else torch.logit(means, eps=1e-7))

    def frame(self, texts: Sequence[Texts]) -> tuple[list[Framed], list[int]]:
        """Texts as the model reads them, long ones in windows, and whose each window is."""
        check_text(["\t".join(one) for one in texts])
        self._check_sizes({len(one) for one in texts})
        flat = iter(self.reader.encode([part for one in texts for part in one]))
        framed: list[Framed] = []
        owners: list[int] = []
        for owner, one in enumerate(texts):
            parts = [next(flat) for _ in one]
            new = self._pair(*parts) if len(parts) == 2 else self._windows(parts[0])
            framed += new
            owners += [owner] * len(new)
        return framed, owners

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
        """A pair that is too long loses the ends of its longer text, as `transformers` cuts it."""
        room = self.reader.room(pair=True)
        less = min(len(first), len(second), room // 2)
        more = room - less
        sizes = (more, less) if len(first) > len(second) else (less, more)
        return [self.reader.frame(first[: sizes[0]], second[: sizes[1]])]

    def _windows(self, tokens: list[int]) -> list[Framed]:
        room = self.reader.room()
        stride = max(1, room - min(self.classes.overlap, room // 2))
        return [self.reader.frame(tokens[a:b]) for a, b in windows(len(tokens), room, stride)]

    def _read(self, probable: list[float], threshold: float | None) -> Classification:
        classes = self.classes
        found = dict(zip(classes.labels, probable, strict=True))
        if classes.kind == "class":
            return Classification((max(found, key=lambda label: found[label]),), found)
        least = classes.threshold if threshold is None else threshold
        given = sorted((one for one in found if found[one] >= least), key=lambda one: -found[one])
        return Classification(tuple(given), found)


def check_labels(labels: Texts, n_labels: int, folder: Where) -> None:
    """Refuse a model folder whose head has no label of its own for each output."""
    if not n_labels:
        raise UserError(f"{folder} has no head of labels for its task; restore config.json.")
    if len(labels) != n_labels:
        raise UserError(
            f"{folder} names {len(labels)} labels, but its head has {n_labels}; restore "
            f"config.json."
        )
    if len(set(labels)) < len(labels) or not all(labels):
        raise UserError(f"{folder} names a label twice, or one is empty; restore config.json.")


def _averaged(values: Tensor, owners: Sequence[int], n_texts: int) -> Tensor:
    """The mean (N, C) over each text's windows."""
    places = torch.tensor(owners)
    counts = torch.bincount(places, minlength=n_texts)[:, None]
    return torch.zeros(n_texts, values.shape[1]).index_add_(0, places, values) / counts
