"""Extractive question answering: a question and a text in, the words of the text that answer it."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qkv.config import AnswerConfig
from qkv.convert.model_folder import StoredModel, load_section
from qkv.data import Framed
from qkv.data.overlaps import Window, windows
from qkv.decode.answer_spans import SpanScore, best_spans, null_score
from qkv.errors import UserError
from qkv.model import Encoder
from qkv.tasks.reading import Reader, load_encoder, save_encoder
from qkv.tasks.task_object import TaskObject
from qkv.tasks.texts import Progress, check_pair
from qkv.text import Tokenizer
from qkv.text.offsets import TokenSpans
from qkv.text.words import Span

if TYPE_CHECKING:
    from qkv.inspect import Trace

CHUNK = 256  # questions read at a time, so that a large file takes little memory
POOL = 100  # spans that share the probability; the others have next to none
NOWHERE: Span = (-1, -1)


@dataclass(frozen=True)
class Answers(AnswerConfig):
    """How answers are searched, and whether there may be none; stored with the model."""

    unanswerable: bool = False  # training had questions that the text does not answer


@dataclass(frozen=True)
class Found:
    """A span of the text that may be the answer; an empty one, at -1, says that there is none.

    Probabilities are shared by the 100 best spans (more, where more are asked for), and by no
    answer where the model has learnt that there may be none.
    """

    text: str
    start: int  # in characters: text == context[start:end]
    end: int
    score: float  # start logit + end logit
    probability: float


@dataclass(frozen=True)
class Answered(Found):
    """The best answer to a question, and the others that were asked for."""

    n_best: tuple[Found, ...] = ()  # best first; the first one is the answer itself


@dataclass(frozen=True)
class Context:
    """A text to look for answers in, with its tokens."""

    text: str
    spelt: TokenSpans
    visible: Tensor  # bool: which tokens are more than white space

    @classmethod
    def of(cls, text: str, spelt: TokenSpans) -> Context:
        """Find the tokens at which an answer may start and end."""
        visible = [bool(text[start:end].strip()) for start, end in spelt.spans]
        return cls(text, spelt, torch.tensor(visible, dtype=torch.bool))

    def tokens(self, start: int, end: int) -> tuple[int, int] | None:
        """The first and the last token of some characters; None where they have no token."""
        part = self.text[start:end]
        visible_end = start + len(part.rstrip())
        start += len(part) - len(part.lstrip())
        first = bisect_right(self.spelt.spans, start, key=lambda span: span[1])
        last = bisect_left(self.spelt.spans, visible_end, key=lambda span: span[0]) - 1
        return (first, last) if first <= last else None


@dataclass(frozen=True)
class Part:
    """A window over a text, framed with the question."""

    framed: Framed
    owner: int  # the number of the question
    window: Window  # which tokens of the text

    @property
    def begin(self) -> int:
        """Position of the window's first token in the frame, whose last token is EOS."""
        first, beyond = self.window
        return len(self.framed.tokens) - 1 - (beyond - first)

    def allowed(self, visible: Tensor) -> Tensor:
        """Mask of the frame's tokens at which an answer may start and end."""
        mask = torch.zeros(len(self.framed.tokens), dtype=torch.bool)
        mask[self.begin : -1] = visible[slice(*self.window)]
        return mask


class Answerer(TaskObject):
    """An encoder with two logits a token: the answer starts here, the answer ends here."""

    def __init__(self, model: Encoder, tokenizer: Tokenizer, settings: Answers) -> None:
        self.model, self.tokenizer, self.settings = model, tokenizer, settings
        self.reader = Reader(model, tokenizer)
        if self.reader.room(pair=True) < 2:
            raise UserError(
                f"A model of max_length {model.config.max_length} has no room for a question and "
                f"a text; give it a larger one."
            )

    @classmethod
    def _of(cls, folder: StoredModel, device: torch.device) -> Answerer:
        model, tokenizer = load_encoder(folder, device)
        config = model.config
        if (config.head, config.n_labels) != ("token", 2):
            raise UserError(
                f"{folder} has no head with the two labels start and end; restore config.json."
            )
        return cls(model, tokenizer, load_section(folder, "answer", Answers))

    def save(self, folder: str | Path) -> None:
        """Write a model folder."""
        settings = dataclasses.asdict(self.settings)
        save_encoder(folder, "answer", self.model, self.tokenizer, answer=settings)

    def answer(self, question: str, context: str, n_best: int = 1) -> Answered:
        """Find the span of a text that answers a question."""
        [found] = self.answers([(question, context)], n_best)
        return Answered(**vars(found[0]), n_best=tuple(found))

    def answers(
        self, pairs: Iterable[tuple[str, str]], n_best: int = 1, progress: Progress | None = None
    ) -> list[list[Found]]:
        """Answer questions, each with the text that holds its answer: the `n_best`, best first.

        Where there may be no answer, that comes first unless the best span scores more than
        `no_answer` above it: the larger that is, the more questions are left unanswered (it is
        SQuAD 2.0's threshold with the sign turned). A blank question has no answer.
        """
        if n_best < 1:
            raise UserError(f"n_best is {n_best}, but must be at least 1.")
        whole = list(pairs)
        for number, pair in enumerate(whole, start=1):
            check_pair(pair, number)
        answers: list[list[Found]] = []
        contexts: dict[str, Context] = {}
        for first in range(0, len(whole), CHUNK):
            chunk = whole[first : first + CHUNK]
            contexts = self.spell((context for _, context in chunk), contexts)
            answers += self._answer(chunk, contexts, n_best)
            if progress:
                progress(len(chunk))
        return answers

    def trace(self, source: tuple[str, str], target: str | None = None) -> Trace:
        """Trace the pass that reads a question and a text; `target` is the true answer."""
        from qkv.inspect.trace.from_task import trace_answer

        return trace_answer(self, source, target)

    def spell(
        self, texts: Iterable[str], known: Mapping[str, Context] | None = None
    ) -> dict[str, Context]:
        """The tokens of texts, each encoded once; those of `known` ones are not computed again."""
        found = {text: (known or {}).get(text) for text in texts}
        new = [text for text, context in found.items() if context is None]
        spelt = dict(zip(new, self.tokenizer.encode_spans_many(new), strict=True))
        return {text: old or Context.of(text, spelt[text]) for text, old in found.items()}

    def frame(self, questions: Sequence[str], contexts: Sequence[Context]) -> list[Part]:
        """Frame each question with each window over its text: BOS question EOS window EOS."""
        room, settings = self.reader.room(pair=True), self.settings
        longest = min(settings.max_question, room // 2)
        encoded = self.reader.encode(questions)
        parts: list[Part] = []
        for owner, (tokens, context) in enumerate(zip(encoded, contexts, strict=True)):
            question, ids = tokens[:longest], context.spelt.ids
            for window in windows(len(ids), room - len(question), settings.overlap):
                framed = self.reader.frame(question, ids[slice(*window)])
                parts.append(Part(framed, owner, window))
        return parts

    def _answer(
        self, pairs: Sequence[tuple[str, str]], contexts: Mapping[str, Context], n_best: int
    ) -> list[list[Found]]:
        texts = [contexts[context] for _, context in pairs]
        parts = self.frame([question for question, _ in pairs], texts)
        logits = self.reader.run([part.framed for part in parts])
        of_pair: list[list[tuple[Part, Tensor]]] = [[] for _ in pairs]
        for part, output in zip(parts, logits, strict=True):
            of_pair[part.owner].append((part, output))
        return [
            self._best(bool(question.strip()), context, outputs, n_best)
            for (question, _), context, outputs in zip(pairs, texts, of_pair, strict=True)
        ]

    def _best(
        self, asked: bool, context: Context, outputs: Sequence[tuple[Part, Tensor]], n_best: int
    ) -> list[Found]:
        """The best answers from the logits (T, 2) of each window."""
        ends = [logits[:, 0] for _, logits in outputs], [logits[:, 1] for _, logits in outputs]
        found: dict[Span, float] = {}
        if asked:
            found = self._spans(context, [part for part, _ in outputs], ends, max(n_best, POOL))
        if self.settings.unanswerable or not found:
            found = {NOWHERE: null_score(*ends), **found}
        shares = torch.tensor(list(found.values()), dtype=torch.float64).softmax(0).tolist()
        candidates = [
            Found("" if span == NOWHERE else context.text[slice(*span)], *span, score, share)
            for (span, score), share in zip(found.items(), shares, strict=True)
        ]

        def rank(found: Found) -> float:
            return found.score if found.start >= 0 else found.score + self.settings.no_answer

        # The sort is stable: at the threshold itself, no answer stays first.
        return sorted(candidates, key=rank, reverse=True)[:n_best]

    def _spans(
        self,
        context: Context,
        parts: Sequence[Part],
        ends: tuple[Sequence[Tensor], Sequence[Tensor]],
        count: int,
    ) -> dict[Span, float]:
        """The best spans of the text with their scores, best first.

        Two windows, or two bytes of one character, may find the same characters: the best score
        counts. So more spans of tokens are asked for until there are enough spans of characters.
        """
        allowed = [part.allowed(context.visible) for part in parts]
        asked = count
        while True:
            spans = best_spans(*ends, allowed, asked, self.settings.max_answer)
            found: dict[Span, float] = {}
            for span in spans:
                found.setdefault(_characters(span, context, parts), span.score)
            if len(found) >= count or len(spans) < asked:
                return dict(islice(found.items(), count))
            asked *= 2


def _characters(span: SpanScore, context: Context, parts: Sequence[Part]) -> Span:
    """The characters of a span of a window's tokens."""
    part, spans = parts[span.window], context.spelt.spans
    shift = part.window[0] - part.begin
    return spans[span.start + shift][0], spans[span.end + shift][1]
