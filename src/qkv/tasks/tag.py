"""Tagging: sentences in; a label for each word, and the entities that labels spell, out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from qkv.config.fields import check_ranges, setting
from qkv.convert.model_folder import Where, load_section
from qkv.data import Framed
from qkv.data.overlaps import most_central, windows
from qkv.decode.viterbi import best_paths
from qkv.errors import UserError
from qkv.model import Encoder
from qkv.tasks.classify import check_labels
from qkv.tasks.reading import Progress, Reader, by_text, check_text, load_encoder, save_encoder
from qkv.text import Tokenizer, tagging
from qkv.text.offsets import WordTokens
from qkv.text.words import Span, split_words

if TYPE_CHECKING:
    from qkv.inspect import Trace

Words = Sequence[str]
SEARCHED = 256  # sentences whose best labels are looked for at once


@dataclass(frozen=True)
class Tags:
    """What a tagger says of a word, and how long sentences are read; stored with the model."""

    labels: tuple[str, ...] = ()
    scheme: Literal["iob1", "iob2", "bioes", "none"] = "none"  # none: any label may follow any
    overlap: int = setting(32, "tokens that the windows over a long sentence share", least=0)

    def __post_init__(self) -> None:
        check_ranges(self, "tag")


@dataclass(frozen=True)
class Entity:
    """Some words that name one thing, and the characters [start, end) of the text that they are.

    Its probability is that of all its words' labels: the product of theirs.
    """

    type: str
    text: str
    start: int
    end: int
    probability: float


@dataclass(frozen=True)
class Tagging:
    """What is said of one sentence."""

    text: str
    words: tuple[str, ...]
    labels: tuple[str, ...]  # of each word; together they are valid by the scheme
    probabilities: tuple[float, ...]  # of each word's label, whatever the others are
    spans: tuple[Span, ...]  # where each word stands in the text
    entities: tuple[Entity, ...]


@dataclass(frozen=True)
class Window:
    """A part of a sentence as the model reads it, and the words whose labels it decides."""

    framed: Framed
    sentence: int
    words: list[int]
    places: list[int]  # of these words' first tokens


class Tagger:
    """An encoder with a head of labels for each word, which stands on the word's first token."""

    def __init__(self, model: Encoder, tokenizer: Tokenizer, tags: Tags) -> None:
        self.model, self.tokenizer, self.tags = model, tokenizer, tags
        self.reader = Reader(model, tokenizer)
        self.scheme = None if tags.scheme == "none" else tags.scheme
        self.valid = tagging.transitions(tags.labels, self.scheme)

    @classmethod
    def load(cls, folder: Where, device: torch.device | None = None) -> Tagger:
        """Read a model folder."""
        model, tokenizer = load_encoder(folder, device)
        tags = load_section(folder, "tag", Tags)
        check_labels(
            tags.labels, model.config.n_labels if model.config.head == "token" else 0, folder
        )
        try:
            return cls(model, tokenizer, tags)
        except ValueError as error:
            raise UserError(f"{folder}: {error}; restore config.json.") from error

    def save(self, folder: Path) -> None:
        """Make a folder a model folder of this."""
        save_encoder(folder, "tag", self.model, self.tokenizer, tag=dataclasses.asdict(self.tags))

    def tag(
        self, texts: str | tuple[str, ...] | Sequence[str | Words], progress: Progress | None = None
    ) -> Any:
        """Label the words of one text (or a tuple of words as they are), or of a list of them.

        Places are characters of the text; where words are given, of those with spaces between.
        """
        if isinstance(texts, str | tuple):
            return self.tag([texts], progress)[0]
        split = [_split(one) for one in texts]
        sentences = [[text[start:end] for start, end in spans] for text, spans in split]
        scores = self.scores(sentences, progress)
        paths = self._best(scores)
        return [
            self._read(*one, said, path)
            for one, said, path in zip(split, scores, paths, strict=True)
        ]

    def trace(self, source: str | Words, target: Sequence[str] | None = None) -> Trace:
        """Look into the pass that tags a sentence; `target` is the true label of each word."""
        from qkv.inspect.tracing import trace_tags

        return trace_tags(self, source, target)

    def scores(self, sentences: Sequence[Words], progress: Progress | None = None) -> list[Tensor]:
        """Log-probabilities of the labels of each sentence's words, (T, C), each by itself."""
        found = [torch.empty(len(words), len(self.tags.labels)) for words in sentences]
        parts = self.frame(sentences)
        advance = progress and by_text(progress, len(sentences), len(parts))
        said = self.reader.run([part.framed for part in parts], progress=advance)
        for part, logits in zip(parts, said, strict=True):
            found[part.sentence][part.words] = logits[part.places].log_softmax(dim=-1)
        return found

    def frame(self, sentences: Sequence[Words]) -> list[Window]:
        """Sentences as the model reads them, long ones in windows; each word is in one's care."""
        check_text([" ".join(words) for words in sentences])
        spelt = self.tokenizer.encode_words_many(sentences)
        return [
            part
            for number, one in enumerate(spelt)
            if one.word
            for part in self._windows(number, one)
        ]

    def _windows(self, sentence: int, spelt: WordTokens) -> Iterator[Window]:
        """Windows cut between words; a word is in the care of the one that sees most around it."""
        word = np.array(spelt.word)
        first = np.diff(word, prepend=-1) > 0
        room = self.reader.room()
        stride = max(1, room - min(self.tags.overlap, room // 2))
        parts = windows(len(word), room, stride, first.tolist())
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
            return [one.argmax(dim=-1).tolist() for one in scores]
        found: list[list[int]] = [[] for _ in scores]
        rows = sorted(range(len(scores)), key=lambda row: len(scores[row]))
        for start in range(0, len(rows), SEARCHED):
            some = rows[start : start + SEARCHED]
            lengths = torch.tensor([len(scores[row]) for row in some])
            padded = pad_sequence([scores[row] for row in some], batch_first=True)
            valid = self.valid.begin, self.valid.follow, self.valid.end
            for row, path in zip(some, best_paths(padded, lengths, *valid), strict=True):
                found[row] = path
        return found

    def _read(self, text: str, spans: Sequence[Span], scores: Tensor, path: list[int]) -> Tagging:
        labels = tuple(self.tags.labels[label] for label in path)
        sure = [math.exp(one[label]) for one, label in zip(scores.tolist(), path, strict=True)]
        found = tagging.entities(labels, self.scheme) if self.scheme else []
        return Tagging(
            text=text,
            words=tuple(text[start:end] for start, end in spans),
            labels=labels,
            probabilities=tuple(sure),
            spans=tuple(spans),
            entities=tuple(_entity(one, text, spans, sure) for one in found),
        )


def _split(given: str | Words) -> tuple[str, list[Span]]:
    """A text and where its words stand."""
    if isinstance(given, str):
        return given, split_words(given)
    ends = list(accumulate(len(word) + 1 for word in given))
    spans = [(end - len(word) - 1, end - 1) for word, end in zip(given, ends, strict=True)]
    return " ".join(given), spans


def _entity(
    found: tagging.Entity, text: str, spans: Sequence[Span], sure: Sequence[float]
) -> Entity:
    start, end = spans[found.start][0], spans[found.end - 1][1]
    probability = math.prod(sure[found.start : found.end])
    return Entity(found.kind, text[start:end], start, end, probability)
