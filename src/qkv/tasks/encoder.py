"""An encoder by itself: texts as vectors, and gaps in texts filled."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, get_args, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.config import EmbedConfig, Pooling
from qkv.convert.model_folder import StoredModel, load_section
from qkv.errors import UserError
from qkv.model import Encoder as EncoderModel
from qkv.model import Layout, evaluating
from qkv.tasks.reading import Reader, averaged, by_text, flattened, load_encoder, save_encoder
from qkv.tasks.task_object import TaskObject
from qkv.tasks.texts import Progress, listed_texts
from qkv.text import Tokenizer
from qkv.text.words import UNSPACED

if TYPE_CHECKING:
    from qkv.inspect import Trace

GAP = re.compile(r"<mask>|\[MASK\]")
WORDS = "0123456789abcdefghijklmnopqrstuvwxyz"  # candidates for the word that replaces a gap
LINES_AT_ONCE = 8192  # compared with
QUERIES_AT_ONCE = 1024  # queries: 32 MiB of scores


@dataclass(frozen=True)
class Neighbour:
    """A line that is similar to a text."""

    index: int
    text: str
    score: float  # the cosine of the angle between the two vectors


@dataclass(frozen=True)
class Candidate:
    """A token that may fill a gap."""

    token: int
    text: str
    probability: float


@dataclass(frozen=True)
class Filled:
    """A text with its gaps filled, and the candidates of each gap while all are hidden."""

    text: str
    masks: tuple[tuple[Candidate, ...], ...]


@dataclass
class _Gapped:
    """A text whose gaps are filled one after the other."""

    parts: list[str]  # around the gaps, as they were typed
    tokens: list[int]
    gaps: list[int]  # positions among the tokens
    masks: list[tuple[Candidate, ...]] = field(default_factory=list)


class Encoder(TaskObject):
    """An encoder without a head, or with a masked-LM head."""

    def __init__(
        self, model: EncoderModel, tokenizer: Tokenizer, embedding: EmbedConfig | None = None
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.embedding = embedding or EmbedConfig()
        self.reader = Reader(model, tokenizer)

    @classmethod
    def _of(cls, folder: StoredModel, device: torch.device) -> Encoder:
        model, tokenizer = load_encoder(folder, device)
        return cls(model, tokenizer, load_section(folder, "embed", EmbedConfig))

    def save(self, folder: str | Path) -> None:
        """Write a model folder."""
        embedding = dataclasses.asdict(self.embedding)
        task = "fill" if self.model.config.head == "masked" else "embed"
        save_encoder(folder, task, self.model, self.tokenizer, embed=embedding)

    def embed(
        self,
        texts: str | Iterable[str],
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        progress: Progress | None = None,
    ) -> Tensor:
        """Embed a text as a vector (D,), or many as (N, D), in float32 on the CPU.

        A text that is longer than the model is read in windows, whose vectors are averaged by their
        number of tokens.
        """
        if isinstance(texts, str):
            return self.embed([texts], pooling, normalize, progress)[0]
        how = pooling or self.embedding.pooling
        if how not in get_args(Pooling):
            raise UserError(f"pooling is {how!r}, but must be {' or '.join(get_args(Pooling))}.")
        texts = listed_texts(texts)
        if not texts:
            return torch.empty(0, self.model.config.d_vector or self.model.config.d_model)

        def pooled(tokens: Tensor, layout: Layout, segments: Tensor) -> Tensor:
            return self.model.embed(self.model.hidden(tokens, layout, segments), layout, how)

        size = self._room()
        encoded = self.reader.encode(texts)
        framed, owners = flattened(self.reader.windows(tokens, size) for tokens in encoded)
        advance = progress and by_text(progress, len(texts), len(framed))
        vectors = torch.stack(self.reader.run(framed, pooled, advance)).double()
        weights = torch.tensor([len(window.tokens) for window in framed], dtype=torch.float64)
        means = averaged(vectors, owners, len(texts), weights).float()
        scaled = self.embedding.normalize if normalize is None else normalize
        return F.normalize(means, dim=-1) if scaled else means

    def _room(self) -> int:
        """How many tokens of text a window holds."""
        room, longest = self.reader.room(), self.embedding.max_length
        special = self.model.config.max_length - room
        return max(1, min(room, longest - special)) if longest else room

    def similarity(
        self, texts: str | Iterable[str] | Tensor, others: str | Iterable[str] | Tensor
    ) -> Tensor:
        """Cosine of each text with each of the others, (N, M); both may be given as vectors."""
        return self._directions(texts) @ self._directions(others).T

    def _directions(
        self, given: str | Iterable[str] | Tensor, progress: Progress | None = None
    ) -> Tensor:
        """Vectors of length 1, (N, D)."""
        if isinstance(given, Tensor):
            rows = given.float().cpu()
            return F.normalize(rows[None] if rows.ndim == 1 else rows, dim=-1)
        texts = [given] if isinstance(given, str) else given
        return self.embed(texts, normalize=True, progress=progress)

    def nearest(
        self,
        queries: str | Iterable[str] | Tensor,
        lines: Iterable[str],
        k: int = 5,
        progress: Progress | None = None,
    ) -> list[list[Neighbour]]:
        """The k lines most similar to each query, best first, equal ones in their order.

        Lines are compared some thousands at a time; blank ones are left out. `progress` is called
        with the number of lines done since the last call.
        """
        if k < 1:
            raise UserError(f"k is {k}, but must be at least 1.")
        lines = listed_texts(lines)
        indices: dict[str, list[int]] = {}
        for index, line in enumerate(lines):
            if line.strip():
                indices.setdefault(line, []).append(index)
        texts = list(indices)  # each is read once, so that equal lines have equal scores
        blocks = self._directions(queries).split(QUERIES_AT_ONCE)
        best = [(torch.empty(len(block), 0),) * 2 for block in blocks]
        for start in range(0, len(texts), LINES_AT_ONCE):
            vectors = self._directions(texts[start : start + LINES_AT_ONCE], progress)
            best = [
                _best(known, block @ vectors.T, start, k)
                for known, block in zip(best, blocks, strict=True)
            ]
        rows = [row for both in best for row in zip(*both, strict=True)]
        return [_neighbours(*row, texts, indices, lines)[:k] for row in rows]

    @overload
    def fill(  # type: ignore[overload-overlap]  # a str is an iterable of strings too
        self, texts: str, top_k: int = 5, progress: Progress | None = None
    ) -> Filled: ...
    @overload
    def fill(
        self, texts: Iterable[str], top_k: int = 5, progress: Progress | None = None
    ) -> list[Filled]: ...
    def fill(
        self, texts: str | Iterable[str], top_k: int = 5, progress: Progress | None = None
    ) -> Filled | list[Filled]:
        """Fill the gaps, "<mask>" or "[MASK]", of a text, or of each of many.

        The surest gap is filled first, and then the others are predicted again, so that words
        agree. A blank text stays as it is.
        """
        if isinstance(texts, str):
            return self.fill([texts], top_k, progress)[0]
        if self.model.config.head != "masked":
            raise UserError(
                "This model can embed texts, but not fill gaps in them: it has no masked-LM head; "
                "use one that was trained with task = 'fill'."
            )
        if top_k < 1:
            raise UserError(f"top_k is {top_k}, but must be at least 1.")
        listed = listed_texts(texts)
        gapped = [self._gapped(text, number) for number, text in enumerate(listed, start=1)]
        asked = [text for text in gapped if text.gaps]
        for rows in self.reader.batches([self.reader.frame(text.tokens) for text in asked]):
            self._fill([asked[row] for row in rows], top_k)
            if progress:
                progress(len(rows))
        return [Filled(self._written(text), tuple(text.masks)) for text in gapped]

    def trace(
        self, source: str | Sequence[str], target: str | Sequence[str] | None = None
    ) -> Trace:
        """Trace the pass that reads a text; `target` is the text without its gaps."""
        from qkv.inspect.trace.from_task import trace_encoder

        return trace_encoder(self, source, target)

    def tokens(self, text: str, number: int = 1) -> list[int]:
        """A text's tokens, with those of its gaps where the model has any; no BOS, no EOS."""
        if self.model.config.head == "masked" and GAP.search(text):
            return self._gapped(text, number).tokens
        return self.reader.encode([text])[0]

    def _gapped(self, text: str, number: int) -> _Gapped:
        """Find the gaps of a text, and its tokens as they are with words in the gaps."""
        parts = GAP.split(text)
        if len(parts) == 1 and text.strip():
            raise UserError(
                f'Text {number} has no gap to fill; mark one with <mask>, as in "the <mask> sat".'
            )
        tokens: list[int] = []
        gaps: list[int] = []
        last = len(parts) - 1
        for index, part in enumerate(parts):
            tokens += self._pieces(part, index > 0, index < last)
            if index < last:
                gaps.append(len(tokens))
                tokens.append(self.tokenizer.mask_id)
        if len(tokens) > self.reader.room():
            raise UserError(
                f"Text {number} has {len(tokens)} tokens, but this model reads at most "
                f"{self.reader.room()}; leave some text out."
            )
        return _Gapped(parts, tokens, gaps)

    def _pieces(self, part: str, after_gap: bool, before_gap: bool) -> list[int]:
        """The tokens that a part has beside words in the gaps around it.

        The space before a word may belong to the word's token, or be a token, or none; so a word
        is put into the gap, unless it would grow together with a letter of the part.
        """
        if not part:
            return []
        before = self._word if after_gap and not part[:1].isalnum() else ""
        after = self._word if before_gap and not part[-1:].isalnum() else ""
        spelt = self.tokenizer.encode_spans(before + part + after)
        start, end = len(before), len(before) + len(part)
        ids: list[int] = []
        for id, (first, last) in zip(spelt.ids, spelt.spans, strict=True):
            if start <= first and last <= end:
                ids.append(id)
            elif first < end and last > start:  # a token that is part of both
                return self.tokenizer.encode(part.strip())
        return ids

    @cached_property
    def _word(self) -> str:
        """A word that is one token together with the space before it, if there is any."""
        for word in WORDS:
            both = self.tokenizer.encode(f"{word} {word}")
            if len(both) == 2 and self.tokenizer.decode(both) == f"{word} {word}":
                return word
        return WORDS[0]

    @cached_property
    def _never(self) -> list[int]:
        """Ids that are no text: special tokens, and rows of the embedding without a token."""
        unused = range(len(self.tokenizer), self.model.config.vocab_size)
        return [*self.tokenizer.special_ids, *unused]

    def _fill(self, texts: Sequence[_Gapped], top_k: int) -> None:
        """Choose a token for every gap, one gap of each text at a time."""
        count = min(top_k, self.model.config.vocab_size - len(self._never))
        hidden = [list(text.gaps) for text in texts]
        while any(hidden):
            waiting = [row for row, gaps in enumerate(hidden) if gaps]
            probable, ids = self._guess([texts[row] for row in waiting], count)
            sizes = [len(hidden[row]) for row in waiting]
            guesses = zip(waiting, probable.split(sizes), ids.split(sizes), strict=True)
            for row, values, tokens in guesses:
                if not texts[row].masks:
                    pairs = zip(tokens.tolist(), values.tolist(), strict=True)
                    texts[row].masks = [self._candidates(*pair) for pair in pairs]
                surest = int(values[:, 0].argmax())
                texts[row].tokens[hidden[row].pop(surest)] = int(tokens[surest, 0])

    @torch.inference_mode()
    def _guess(self, texts: Sequence[_Gapped], count: int) -> tuple[Tensor, Tensor]:
        """The probabilities and ids of the likeliest tokens of all hidden gaps, (K, count)."""
        framed = [self.reader.frame(text.tokens) for text in texts]
        with evaluating(self.model):
            tokens, layout, segments = self.reader.pad(framed)
            x = self.model.hidden(tokens, layout, segments)
            logits = self.model.head(x[tokens == self.tokenizer.mask_id])
        probable = logits.float().softmax(-1)
        probable[:, self._never] = 0
        values, ids = probable.topk(count)
        return values.cpu(), ids.cpu()

    def _candidates(self, ids: list[int], probable: list[float]) -> tuple[Candidate, ...]:
        pairs = zip(ids, probable, strict=True)
        return tuple(Candidate(id, self._name(id), value) for id, value in pairs)

    def _name(self, id: int) -> str:
        """The text of a token; its name where that is nothing, or a part of a character."""
        text = self._spelt([id])
        readable = text and "\ufffd" not in text
        return (text.strip() or text) if readable else self.tokenizer.tokens([id])[0]

    def _spelt(self, ids: Sequence[int]) -> str:
        """The text of tokens after a word, with a space in front where they put one."""
        word = self.tokenizer.encode(self._word)
        return self.tokenizer.decode([*word, *ids])[len(self.tokenizer.decode(word)) :]

    def _written(self, gapped: _Gapped) -> str:
        """The text as it was typed, with the tokens in its gaps; adjacent gaps are one."""
        text, run = gapped.parts[0], []
        for gap, part in zip(gapped.gaps, gapped.parts[1:], strict=True):
            run.append(gapped.tokens[gap])
            if part or gap == gapped.gaps[-1]:
                text = _joined(text, self._spelt(run)) + part
                run = []
        return text


def _joined(before: str, filling: str) -> str:
    """Put a filling after a text, apart from its last word if they are two words."""
    word = filling.lstrip()
    if not word:  # white space is what some models write
        return before + filling
    letters = before[-1:].isalnum() and not UNSPACED.match(before[-1]) and not UNSPACED.match(word)
    return before + (" " if letters and filling != word else "") + word


def _best(
    known: tuple[Tensor, Tensor], scores: Tensor, start: int, k: int
) -> tuple[Tensor, Tensor]:
    """The k highest scores so far with the indices of their texts, (Q, k), earlier ones first."""
    numbers = torch.arange(start, start + scores.shape[1]).expand_as(scores)
    values = torch.cat([known[0], scores], dim=1)
    values, order = values.sort(dim=1, descending=True, stable=True)
    order = order[:, :k]
    return values[:, :k], torch.cat([known[1].long(), numbers], dim=1).gather(1, order)


def _neighbours(
    scores: Tensor,
    numbers: Tensor,
    texts: Sequence[str],
    indices: dict[str, list[int]],
    lines: Sequence[str],
) -> list[Neighbour]:
    """All lines that have these texts, best first, equally good ones in their order."""
    found = [
        Neighbour(index, lines[index], score)
        for score, number in zip(scores.tolist(), numbers.tolist(), strict=True)
        for index in indices[texts[number]]
    ]
    return sorted(found, key=lambda neighbour: (-neighbour.score, neighbour.index))
