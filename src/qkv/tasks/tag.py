"""Tagging: sentences in; a label for each word, and the entities that labels spell, out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from qkv.config.fields import check_ranges, setting
from qkv.convert.model_folder import StoredModel, load_section
from qkv.data import Framed
from qkv.data.overlaps import most_central, windows
from qkv.decode.viterbi import best_paths
from qkv.errors import UserError
from qkv.model import Encoder
from qkv.tasks.classify import check_labels
from qkv.tasks.reading import Reader, by_text, load_encoder, save_encoder
from qkv.tasks.task_object import TaskObject
from qkv.tasks.texts import Progress, check_several, check_text
from qkv.text import Tokenizer, tagging
from qkv.text.offsets import WordTokens
from qkv.text.words import Span, split_words

if TYPE_CHECKING:
    from qkv.inspect import Trace

Words = Sequence[str]
SEARCHED = 256  # sentences whose best labels are searched at once


@dataclass(frozen=True)
class Tags:
    """What a tagger predicts of a word, and how long sentences are read; stored with the model."""

    labels: tuple[str, ...] = ()
    scheme: Literal["iob1", "iob2", "bioes", "none"] = "none"  # none: any label may follow any
    overlap: int = setting(
        32, "tokens that neighbouring windows over a long sentence share", least=0
    )

    def __post_init__(self) -> None:
        check_ranges(self, "tag")


@dataclass(frozen=True)
class Entity:
    """Words that name one thing, and the characters [start, end) that they are in the text.

    The probability is the product of those of the words' labels.
    """

    type: str
    text: str
    start: int
    end: int
    probability: float


@dataclass(frozen=True)
class Tagging:
    """The labels of one sentence's words, and the entities that they spell."""

    text: str
    words: tuple[str, ...]
    labels: tuple[str, ...]  # of each word; together they are valid by the scheme
    probabilities: tuple[float, ...]  # of each word's label, whatever the others are
    spans: tuple[Span, ...]  # of each word, in characters of the text
    entities: tuple[Entity, ...]


@dataclass(frozen=True)
class Window:
    """A part of a sentence as the model reads it, and the words whose labels it decides."""

    framed: Framed
    sentence: int
    words: list[int]
    places: list[int]  # positions of these words' first tokens


class Tagger(TaskObject):
    """An encoder with a head that labels each word at its first token."""

    def __init__(self, model: Encoder, tokenizer: Tokenizer, tags: Tags) -> None:
        self.model, self.tokenizer, self.tags = model, tokenizer, tags
        self.reader = Reader(model, tokenizer)
        self.scheme = None if tags.scheme == "none" else tags.scheme
        self.valid = tagging.transitions(tags.labels, self.scheme)

    def _labels(self) -> tuple[str, ...]:
        return self.tags.labels

    @classmethod
    def _of(cls, folder: StoredModel, device: torch.device) -> Tagger:
        model, tokenizer = load_encoder(folder, device)
        tags = load_section(folder, "tag", Tags)
        check_labels(
            tags.labels, model.config.n_labels if model.config.head == "token" else 0, folder
        )
        try:
            return cls(model, tokenizer, tags)
        except ValueError as error:
            raise UserError(f"{folder}: {error}; restore config.json.") from error

    def save(self, folder: str | Path) -> None:
        """Write a model folder."""
        save_encoder(folder, "tag", self.model, self.tokenizer, tag=dataclasses.asdict(self.tags))

    @overload
    def tag(  # type: ignore[overload-overlap]  # a str is an iterable of strings too
        self, texts: str | tuple[str, ...], progress: Progress | None = None
    ) -> Tagging: ...
    @overload
    def tag(
        self, texts: Iterable[str | Words], progress: Progress | None = None
    ) -> list[Tagging]: ...
    def tag(
        self, texts: str | tuple[str, ...] | Iterable[str | Words], progress: Progress | None = None
    ) -> Tagging | list[Tagging]:
        """Label the words of a text (or a tuple of words as they are), or of each of many.

        Spans are characters of the text; where words are given, of these with spaces between.
        """
        if isinstance(texts, str | tuple):
            return self.tag([texts], progress)[0]
        check_several(texts)
        split = [_split(text, number) for number, text in enumerate(texts, start=1)]
        sentences = [[text[start:end] for start, end in spans] for text, spans in split]
        scores = self.scores(sentences, progress)
        return [
            self._read(text, spans, of_words, path)
            for (text, spans), of_words, path in zip(split, scores, self._best(scores), strict=True)
        ]

    def trace(self, source: str | Words, target: Sequence[str] | None = None) -> Trace:
        """Trace the pass that tags a sentence; `target` is the true label of each word."""
        from qkv.inspect.trace.from_task import trace_tags

        return trace_tags(self, source, target)

    def scores(self, sentences: Sequence[Words], progress: Progress | None = None) -> list[Tensor]:
        """Log-probabilities of the labels of each sentence's words, (T, C)."""
        found = [torch.empty(len(words), len(self.tags.labels)) for words in sentences]
        parts = self.frame(sentences)
        advance = progress and by_text(progress, len(sentences), len(parts))
        outputs = self.reader.run([part.framed for part in parts], progress=advance)
        for part, logits in zip(parts, outputs, strict=True):
            found[part.sentence][part.words] = logits[part.places].log_softmax(dim=-1)
        return found

    def frame(self, sentences: Sequence[Words]) -> list[Window]:
        """Sentences as the model reads them, long ones in windows; one window decides each word."""
        spelt = self.tokenizer.encode_words(sentences)
        return [
            part
            for number, words in enumerate(spelt)
            if words.word
            for part in self._windows(number, words)
        ]

    def _windows(self, sentence: int, spelt: WordTokens) -> Iterator[Window]:
        """Windows cut between words; the one that sees most around a word decides it."""
        word = np.array(spelt.word)
        first = np.diff(word, prepend=-1) > 0
        parts = windows(len(word), self.reader.room(), self.tags.overlap, first.tolist())
        chosen = np.array(most_central(parts, len(word)))
        for index, (start, end) in enumerate(parts):
            own = np.flatnonzero(first & (chosen == index))
            if len(own):
                framed = self.reader.frame(spelt.ids[start:end])
                places = own - start + 1  # BOS comes first
                yield Window(framed, sentence, word[own].tolist(), places.tolist())

    def _best(self, scores: Sequence[Tensor]) -> list[list[int]]:
        """The likeliest labels of each sentence that are valid together."""
        if self.scheme is None:
            return [of_words.argmax(dim=-1).tolist() for of_words in scores]
        found: list[list[int]] = [[] for _ in scores]
        rows = sorted(range(len(scores)), key=lambda row: len(scores[row]))
        for start in range(0, len(rows), SEARCHED):
            batch = rows[start : start + SEARCHED]
            lengths = torch.tensor([len(scores[row]) for row in batch])
            padded = pad_sequence([scores[row] for row in batch], batch_first=True)
            valid = self.valid.begin, self.valid.follow, self.valid.end
            for row, path in zip(batch, best_paths(padded, lengths, *valid), strict=True):
                found[row] = path
        return found

    def _read(self, text: str, spans: Sequence[Span], scores: Tensor, path: list[int]) -> Tagging:
        labels = tuple(self.tags.labels[label] for label in path)
        chosen = [row[label] for row, label in zip(scores.tolist(), path, strict=True)]
        sure = list(map(math.exp, chosen))
        entities = tagging.entities(labels, self.scheme) if self.scheme else []
        return Tagging(
            text=text,
            words=tuple(text[start:end] for start, end in spans),
            labels=labels,
            probabilities=tuple(sure),
            spans=tuple(spans),
            entities=tuple(
                _entity(kind, text, spans[start:end], sure[start:end])
                for kind, start, end in entities
            ),
        )


def _split(given: str | Words, number: int) -> tuple[str, list[Span]]:
    """A text and the spans of its words."""
    if isinstance(given, str):
        check_text(given, number)
        return str(given), split_words(given)
    if not isinstance(given, Iterable):
        check_text(given, number)
    words = list(given)
    for word in words:
        check_text(word, number)
    ends = list(accumulate(len(word) + 1 for word in words))
    spans = [(end - len(word) - 1, end - 1) for word, end in zip(words, ends, strict=True)]
    return " ".join(words), spans


def _entity(kind: str, text: str, spans: Sequence[Span], sure: Sequence[float]) -> Entity:
    start, end = spans[0][0], spans[-1][1]
    return Entity(kind, text[start:end], start, end, math.prod(sure))
