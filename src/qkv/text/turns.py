"""The turns of a conversation as one tokenizer spells them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from tokenizers import decoders

from qkv.text.pieces import BOS, EOS
from qkv.text.template import parts
from qkv.text.tokenizer import Tokenizer

Role = Literal["system", "user", "assistant"]
ROLES: tuple[Role, ...] = get_args(Role)
SPECIAL = re.compile(rf"({BOS}|{EOS}|<\|[^|<>\s]+\|>)")


class Turn(NamedTuple):
    """A message, and the text of the template that it is written in."""

    role: Role
    written: str
    content: str


@dataclass(frozen=True)
class Encoded:
    """A conversation's tokens, and for each of them whether the assistant is to produce it."""

    tokens: list[int]
    answer: list[bool]


def around(written: str) -> tuple[str, str]:
    """The texts before and after a turn's content."""
    pieces = parts(written)
    place = pieces.index(("content", True))
    before, after = pieces[:place], pieces[place + 1 :]
    return "".join(text for text, _ in before), "".join(text for text, _ in after)


@dataclass(frozen=True)
class _Frame:
    """The tokens around a role's content; of those after it, `ending` belongs to an answer."""

    before: list[int]
    lead: str  # what the content is encoded with, and
    cut: list[int]  # which tokens at its start are then taken away again
    ending: list[int]
    rest: list[int]
    goes_on: bool  # whether text that follows is in the middle of a text


class Speller:
    """A template's turns as one tokenizer spells them."""

    def __init__(
        self, tokenizer: Tokenizer, assistant: str, answer_space: bool, plain: Sequence[str]
    ) -> None:
        self.tokenizer, self.assistant, self.answer_space = tokenizer, assistant, answer_space
        self.special = _special(tokenizer, plain)
        self.frames: dict[tuple[str, bool], _Frame] = {}
        # Tokenizers that put a "▁" before a text would also put one between a template's text and
        # what is said. A line break before it prevents that, and its tokens are taken away.
        self.line_break = _line_break(tokenizer)
        is_byte_level = isinstance(tokenizer._backend.decoder, decoders.ByteLevel)
        self.joins_space = bool(self.line_break) or is_byte_level  # has pieces such as " hello"
        scheme = getattr(tokenizer._backend.pre_tokenizer, "prepend_scheme", "always")
        self.only_first = scheme == "first"  # no "▁" after a special token either

    def encode(self, conversations: list[list[Turn]], bos: bool) -> list[Encoded]:
        """Encode conversations in parallel."""
        framed = [self._framed(turns, bos) for turns in conversations]
        texts = [frame.lead + turn.content for turns in framed for turn, frame in turns]
        contents = iter(self.tokenizer.encode_many(texts))
        encoded = []
        for turns in framed:
            tokens = [self.tokenizer.bos_id] if bos else []
            if turns[0][1].before[:1] == tokens:  # the template brings its own
                tokens = []
            answer = [False] * len(tokens)
            for turn, frame in turns:
                said = [*self._without(frame, turn, next(contents)), *frame.ending]
                # An empty answer is a gap in the data: nobody should learn to say nothing.
                counts = turn.role == "assistant" and bool(turn.content.strip())
                tokens += [*frame.before, *said, *frame.rest]
                answer += [False] * len(frame.before)
                answer += [counts] * len(said) + [False] * len(frame.rest)
            encoded.append(Encoded(tokens, answer))
        return encoded

    def invitation(self, turns: list[Turn]) -> list[int]:
        """The tokens that invite an answer to a conversation."""
        goes_on = self._framed(turns, bos=False)[-1][1].goes_on
        return self._frame(self.assistant, goes_on).before

    def special_id(self, name: str) -> int:
        """The id of a special token by its name in a template."""
        name = name.strip()  # of white space that the token swallows
        if name == BOS:
            return self.tokenizer.bos_id
        return self.tokenizer.eos_id if name == EOS else self.tokenizer.special_id(name)

    def _framed(self, turns: list[Turn], bos: bool) -> list[tuple[Turn, _Frame]]:
        goes_on = self.only_first and bos
        framed = []
        for turn in turns:
            frame = self._frame(turn.written, goes_on)
            framed.append((turn, frame))
            goes_on = frame.goes_on
        return framed

    def _frame(self, written: str, goes_on: bool) -> _Frame:
        if (written, goes_on) not in self.frames:
            self.frames[written, goes_on] = self._new_frame(written, goes_on)
        return self.frames[written, goes_on]

    def _new_frame(self, written: str, goes_on: bool) -> _Frame:
        before, after = around(written)
        # A prompt ends where an answer begins, so that an answer's space is told to be its own.
        joins = self.answer_space if written == self.assistant else self.joins_space
        lead = " " if before.endswith(" ") and joins else ""
        stretches, goes_on = self._stretches(before.removesuffix(lead), goes_on)
        cut = self.line_break if goes_on else []
        endings, goes_on = self._stretches(after, goes_on=True)
        # An answer ends with the first special token, or with the whole text if there is none.
        places = [place for place, (_, is_special) in enumerate(endings, 1) if is_special]
        end = places[0] if places else len(endings)
        return _Frame(
            before=_flat(stretches),
            lead="\n" + lead if cut else lead,
            cut=cut,
            ending=_flat(endings[:end]),
            rest=_flat(endings[end:]),
            goes_on=goes_on,
        )

    def _stretches(self, text: str, goes_on: bool) -> tuple[list[tuple[list[int], bool]], bool]:
        """Cut a template's text at special tokens, and say whether the text after it goes on."""
        found = []
        for stretch in filter(None, self.special.split(text)):
            is_special = bool(self.special.fullmatch(stretch))
            ids = [self.special_id(stretch)] if is_special else self._words(stretch, goes_on)
            found.append((ids, is_special))
            goes_on = self.only_first if is_special else True
        return found, goes_on

    def _words(self, text: str, goes_on: bool) -> list[int]:
        cut = self.line_break if goes_on else []
        ids = self.tokenizer.encode("\n" + text if cut else text)
        return ids[len(cut) :] if ids[: len(cut)] == cut else self.tokenizer.encode(text)

    def _without(self, frame: _Frame, turn: Turn, ids: list[int]) -> list[int]:
        size = len(frame.cut)
        if ids[:size] == frame.cut:
            return ids[size:]
        return self.tokenizer.encode(frame.lead.removeprefix("\n") + turn.content)


def _flat(stretches: list[tuple[list[int], bool]]) -> list[int]:
    return [id for ids, _ in stretches for id in ids]


def _special(tokenizer: Tokenizer, plain: Sequence[str]) -> re.Pattern[str]:
    """What is a special token in a template's text: the tokenizer's own and what looks like one."""
    names = [
        r"\s*" * token.lstrip + re.escape(token.content) + r"\s*" * token.rstrip
        for token in tokenizer._backend.get_added_tokens_decoder().values()
        if token.special
    ]
    options = "|".join([*sorted(names, key=len, reverse=True), SPECIAL.pattern[1:-1]])
    texts = "|".join(map(re.escape, plain))
    return re.compile(f"((?!{texts})(?:{options}))" if texts else f"({options})")


def _line_break(tokenizer: Tokenizer) -> list[int]:
    """The tokens of a line break where a text gets a "▁" that one after a line break does not."""
    line_break, first = tokenizer.encode("\n"), tokenizer.encode("a")
    after = tokenizer.encode("\na")[len(line_break) :]
    if not (line_break and first and after):
        return []
    pieces = (str(tokenizer._backend.id_to_token(ids[0])) for ids in (first, after))
    return line_break if [piece[0] == "▁" for piece in pieces] == [True, False] else []
