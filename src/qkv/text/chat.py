"""Conversations as token ids: how turns are marked, and which tokens are the assistant's to say.

The texts of a template and of a message are encoded apart and never run into each other. So a
conversation that goes on begins with exactly the tokens that it had, and a KV cache of them stays
valid; and since no text can spell a special token, nobody can forge the end of a turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, TypedDict, get_args

from tokenizers import decoders

from qkv.config.fields import from_mapping
from qkv.errors import UserError
from qkv.text.pieces import BOS, EOS
from qkv.text.record_template import check_characters, parts
from qkv.text.tokenizer import Tokenizer

Role = Literal["system", "user", "assistant"]
ROLES: tuple[Role, ...] = get_args(Role)
FOLLOWS: dict[Role | None, tuple[Role, ...]] = {
    None: ("system", "user"),
    "system": ("user",),
    "user": ("assistant",),
    "assistant": ("user",),
}
SPECIAL = re.compile(rf"({BOS}|{EOS}|<\|[^|<>\s]+\|>)")


class Message(TypedDict):
    """One turn of a chat: a role and its text."""

    role: Role
    content: str


Messages = Sequence[Mapping[str, object]]
"""A conversation as people write it: plain dicts with "role" and "content"."""


class Turn(NamedTuple):
    """A message, and the template's text for its role."""

    role: Role
    written: str
    content: str


@dataclass(frozen=True)
class Encoded:
    """A conversation's tokens, and for each of them whether the assistant is to produce it."""

    tokens: list[int]
    answer: list[bool]


@dataclass(frozen=True)
class Ends:
    """What ends an answer: one of these tokens or, where `text` is not empty, that text."""

    ids: frozenset[int]
    text: str


def around(written: str) -> tuple[str, str]:
    """Cut a turn's text at its content, into the texts before and after it."""
    pieces = parts(written)
    cut = pieces.index(("content", True))
    before, after = pieces[:cut], pieces[cut + 1 :]
    return "".join(text for text, _ in before), "".join(text for text, _ in after)


@dataclass(frozen=True)
class ChatTemplate:
    """How each role's turn is written, with '{content}' for the message.

    `<bos>` and `<eos>` are the tokenizer's own tokens, whatever their names; names like
    `<|im_end|>` are special tokens that it must have, unless they are among `plain`; and its other
    special tokens, such as `[INST]`, are special here too. The text before the assistant's content
    invites the answer, and the text after it ends the answer. Where `system` is "", there can be no
    system message.
    """

    system: str
    user: str
    assistant: str
    default_system: str | None = None
    """The system message of a conversation that brings none; None for no message."""
    user_after_system: str = ""
    """The user's turn right after the system's, where it is written differently."""
    trim: bool = False
    """Whether white space around a message is removed."""
    answer_space: bool = False
    """Whether the space before an answer is the assistant's to say, and so not in a prompt."""
    plain: tuple[str, ...] = ()
    """Names like `<|user|>` that are plain text."""

    def __post_init__(self) -> None:
        for role in ROLES:
            self._check(role, getattr(self, role), optional=role == "system")
        self._check("user", self.user_after_system, optional=True)
        before, after = around(self.assistant)
        if not after:
            raise UserError(
                f"The chat template's assistant turn is {self.assistant!r}, where nothing ends an "
                f"answer; put '{EOS}' after '{{content}}'."
            )
        if self.answer_space and not before.endswith(" "):
            raise UserError(
                f"The chat template's assistant turn is {self.assistant!r}, but answer_space needs "
                f"a space before '{{content}}'; add it, or set answer_space to false."
            )
        if not self.system and (self.default_system is not None or self.user_after_system):
            raise UserError(
                "The chat template's system turn is empty, so that default_system and "
                "user_after_system have no meaning; write it, or leave them out."
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, object], where: str) -> ChatTemplate:
        """Build a template from plain values; `where` names their origin in error messages."""
        missing = [role for role in ROLES if role not in values]
        if missing:
            raise UserError(
                f"{where}: {missing[0]!r} is missing; a chat template says how the turns of "
                f"{', '.join(ROLES)} are written."
            )
        try:
            return from_mapping(cls, values, where)
        except UserError as error:  # errors of a turn's text do not name the origin
            if str(error).startswith(where):
                raise
            raise UserError(f"{where}: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for `from_dict`: the turns, and what differs from the defaults."""
        values = {field.name: (getattr(self, field.name), field.default) for field in fields(self)}
        return {name: value for name, (value, default) in values.items() if value != default}

    @property
    def special_names(self) -> list[str]:
        """The special tokens that the tokenizer must have, besides its own BOS and EOS."""
        turns = filter(None, [self.system, self.user, self.assistant, self.user_after_system])
        texts = (text for turn in turns for text in around(turn))
        names = dict.fromkeys(name for text in texts for name in SPECIAL.findall(text))
        return [name for name in names if name not in {BOS, EOS, *self.plain}]

    def encode(self, messages: Messages, tokenizer: Tokenizer, bos: bool) -> Encoded:
        """Turn a conversation into tokens; with `bos`, it begins with BOS, but never with two."""
        turns = self.turns(messages, "The conversation")
        return _TurnEncoder(self, tokenizer).encode([turns], bos, invite=False)[0]

    def encode_many(
        self, conversations: Sequence[Messages], tokenizer: Tokenizer, bos: bool
    ) -> list[Encoded]:
        """Encode conversations in parallel."""
        numbered = enumerate(conversations, 1)
        turns = [self.turns(messages, f"conversation {n}") for n, messages in numbered]
        return _TurnEncoder(self, tokenizer).encode(turns, bos, invite=False)

    def prompt(self, messages: Messages, tokenizer: Tokenizer, bos: bool) -> list[int]:
        """Encode the conversation so far and the invitation to answer."""
        turns = self.turns(messages, "The conversation")
        if turns[-1].role != "user":
            raise UserError(
                f"The conversation, message {len(messages)}: the last to speak is the "
                f"{turns[-1].role}, but only a user can be answered; add a user's message."
            )
        return _TurnEncoder(self, tokenizer).encode([turns], bos, invite=True)[0].tokens

    def ends(self, tokenizer: Tokenizer) -> Ends:
        """Find what ends an answer: EOS always, and what the template puts after an answer."""
        _, ending = around(self.assistant)
        encoder = _TurnEncoder(self, tokenizer)
        special = encoder.special.search(ending)
        if not special:
            return Ends(frozenset({tokenizer.eos_id}), ending)
        return Ends(frozenset({tokenizer.eos_id, encoder.special_id(special[0])}), "")

    def turns(self, messages: Messages, where: str) -> list[Turn]:
        """Check a conversation, and choose the template's text for each of its turns."""
        checked = check_messages(messages, where)
        if checked[0]["role"] == "system" and not self.system:
            raise UserError(
                f"{where}, message 1: this chat template has no place for a system message; say "
                f"it in the user's first message."
            )
        turns = [
            Turn(role, getattr(self, role), content.strip() if self.trim else content)
            for role, content in ((message["role"], message["content"]) for message in checked)
        ]
        if turns[0].role != "system" and self.default_system is not None:
            turns.insert(0, Turn("system", self.system, self.default_system))
        if self.user_after_system and turns[0].role == "system" and len(turns) > 1:
            turns[1] = turns[1]._replace(written=self.user_after_system)
        return turns

    def _check(self, role: Role, written: str, optional: bool) -> None:
        if optional and not written:
            return
        if [name for name, is_name in parts(written) if is_name] != ["content"]:
            raise UserError(
                f"The chat template's {role} turn is {written!r}, but must hold '{{content}}' "
                f"exactly once and no other name; write it like '{role.title()}:{{content}}{EOS}'."
            )


TEMPLATES = {
    # Needs no token but EOS. No space after the colon: our tokenizers add one to a first word.
    "plain": ChatTemplate(
        system=f"System:{{content}}{EOS}",
        user=f"User:{{content}}{EOS}",
        assistant=f"Assistant:{{content}}{EOS}",
    ),
    "alpaca": ChatTemplate(
        system="{content}\n\n",
        user="### Instruction:\n{content}\n\n",
        assistant=f"### Response:\n{{content}}{EOS}\n\n",
    ),
    "chatml": ChatTemplate(
        system="<|im_start|>system\n{content}<|im_end|>\n",
        user="<|im_start|>user\n{content}<|im_end|>\n",
        assistant="<|im_start|>assistant\n{content}<|im_end|>\n",
    ),
}


def check_messages(messages: Messages, where: str) -> list[Message]:
    """Check each message, and that user and assistant take turns after any system message."""
    if isinstance(messages, str | Mapping) or not isinstance(messages, Iterable):
        raise UserError(
            f"{where} is {str(messages)[:60]!r}, but must be a list of messages like "
            f'{{"role": "user", "content": "…"}}.'
        )
    if not messages:
        raise UserError(f"{where}: there is no message; a conversation needs a user's at least.")
    checked: list[Message] = []
    before: Role | None = None
    for number, message in enumerate(messages, 1):
        here = f"{where}, message {number}"
        checked.append(_checked(message, here))
        role = checked[-1]["role"]
        if role not in FOLLOWS[before]:
            when = f"after the {before}'s" if before else "first"
            raise UserError(
                f"{here}: the {role} cannot speak {when}; a system message may come first, and "
                f"then the user and the assistant speak by turns, the user first."
            )
        before = role
    return checked


def _checked(message: Mapping[str, object], where: str) -> Message:
    if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
        raise UserError(
            f"{where}: {str(message)[:60]!r} is no message; write it like "
            f'{{"role": "user", "content": "…"}}.'
        )
    role, content = message["role"], message["content"]
    if role not in ROLES:
        raise UserError(f"{where}: the role is {role!r}, but must be one of: {', '.join(ROLES)}.")
    if not isinstance(content, str):
        raise UserError(f"{where}: the content is {str(content)[:40]!r}, but must be a string.")
    check_characters(content, f"{where}: the content")
    return {"role": role, "content": content}


class _Segment(NamedTuple):
    """A special token by its name, or a text that is encoded by itself."""

    text: str
    is_special: bool
    is_answer: bool
    cut: list[int]  # the tokens of a line break that the text is encoded with


class _TurnEncoder:
    """Encodes the turns of a chat template with one tokenizer."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self.template, self.tokenizer = template, tokenizer
        self.special = _special_pattern(tokenizer, template.plain)
        # Tokenizers that put a "▁" before a text would also put one between a template's text and
        # a message. A line break before it prevents that, and its tokens are taken away.
        self.line_break = _line_break(tokenizer)
        is_byte_level = isinstance(tokenizer._backend.decoder, decoders.ByteLevel)
        self.joins_space = bool(self.line_break) or is_byte_level  # has pieces such as " hello"
        scheme = getattr(tokenizer._backend.pre_tokenizer, "prepend_scheme", "always")
        self.only_first = scheme == "first"  # no "▁" after a special token either

    def encode(self, conversations: list[list[Turn]], bos: bool, invite: bool) -> list[Encoded]:
        """Encode conversations in parallel; with `invite`, also the start of the next answer."""
        segmented = [list(self._segments(turns, bos, invite)) for turns in conversations]
        lines = dict.fromkeys(
            "\n" * bool(segment.cut) + segment.text
            for segments in segmented
            for segment in segments
            if not segment.is_special
        )
        ids_of = dict(zip(lines, self.tokenizer.encode_many([*lines]), strict=True))
        return [self._joined(segments, ids_of, bos) for segments in segmented]

    def special_id(self, name: str) -> int:
        """Look up a special token by its name in a template."""
        name = name.strip()  # of white space that the token swallows
        if name == BOS:
            return self.tokenizer.bos_id
        return self.tokenizer.eos_id if name == EOS else self.tokenizer.special_id(name)

    def _segments(self, turns: list[Turn], bos: bool, invite: bool) -> Iterator[_Segment]:
        goes_on = self.only_first and bos
        for text, is_special, is_answer in self._parts(turns, invite):
            yield _Segment(text, is_special, is_answer, self.line_break if goes_on else [])
            goes_on = self.only_first if is_special else True

    def _parts(self, turns: list[Turn], invite: bool) -> Iterator[tuple[str, bool, bool]]:
        """Cut turns at special tokens; the flags tell whether a part is one, and of an answer."""
        for turn in turns:
            before, after = around(turn.written)
            is_answer = turn.role == "assistant"
            lead = " " if before.endswith(" ") and self._joins(is_answer) else ""
            # An empty answer is a gap in the data, and no model should learn to say nothing.
            is_answer &= bool(turn.content.strip())
            yield from ((*part, False) for part in self._split(before.removesuffix(lead)))
            yield lead + turn.content, False, is_answer
            for text, is_special in self._split(after):
                yield text, is_special, is_answer
                is_answer &= not is_special  # the first special token ends it
        if invite:
            before, _ = around(self.template.assistant)
            before = before.removesuffix(" ") if self._joins(is_answer=True) else before
            yield from ((*part, False) for part in self._split(before))

    def _split(self, text: str) -> list[tuple[str, bool]]:
        parts = self.special.split(text)
        return [(part, number % 2 == 1) for number, part in enumerate(parts) if part]

    def _joins(self, is_answer: bool) -> bool:
        """Whether the space before a content is encoded with it."""
        return self.template.answer_space if is_answer else self.joins_space

    def _joined(
        self, segments: list[_Segment], ids_of: Mapping[str, list[int]], bos: bool
    ) -> Encoded:
        tokens: list[int] = []
        answer: list[bool] = []
        for text, is_special, is_answer, cut in segments:
            if is_special:
                ids = [self.special_id(text)]
            else:
                ids = ids_of["\n" * bool(cut) + text]
                unbroken = ids[: len(cut)] == cut
                ids = ids[len(cut) :] if unbroken else self.tokenizer.encode(text)
            tokens += ids
            answer += [is_answer] * len(ids)
        if bos and tokens[:1] != [self.tokenizer.bos_id]:  # else the template brings its own
            tokens.insert(0, self.tokenizer.bos_id)
            answer.insert(0, False)
        return Encoded(tokens, answer)


def _special_pattern(tokenizer: Tokenizer, plain: Sequence[str]) -> re.Pattern[str]:
    """Match special tokens in a template's text: the tokenizer's own and what looks like one."""
    names = [
        r"\s*" * token.lstrip + re.escape(token.content) + r"\s*" * token.rstrip
        for token in tokenizer._backend.get_added_tokens_decoder().values()
        if token.special
    ]
    options = "|".join([*sorted(names, key=len, reverse=True), SPECIAL.pattern[1:-1]])
    texts = "|".join(map(re.escape, plain))
    return re.compile(f"((?!{texts})(?:{options}))" if texts else f"({options})")


def _line_break(tokenizer: Tokenizer) -> list[int]:
    """Encode a line break, for tokenizers that put a "▁" before a text but not after a break."""
    line_break, first = tokenizer.encode("\n"), tokenizer.encode("a")
    after = tokenizer.encode("\na")[len(line_break) :]
    if not (line_break and first and after):
        return []
    pieces = (str(tokenizer._backend.id_to_token(ids[0])) for ids in (first, after))
    return line_break if [piece[0] == "▁" for piece in pieces] == [True, False] else []
