"""Conversations as token ids: how turns are marked, and which tokens are the assistant's to say.

The texts of a template and of a message are encoded apart and never run into each other. So a
conversation that goes on begins with exactly the tokens that it had, and a cache of them stays
good; and since no text can spell a special token, nobody can forge the end of a turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TypedDict, get_args

from qkv.config.fields import from_mapping
from qkv.errors import UserError
from qkv.text.pieces import BOS, EOS
from qkv.text.template import HALF_CHARACTER, parts
from qkv.text.tokenizer import Tokenizer

Role = Literal["system", "user", "assistant"]
ROLES: tuple[Role, ...] = get_args(Role)
SPECIAL = re.compile(rf"({BOS}|{EOS}|<\|[^|<>\s]+\|>)")


class Message(TypedDict):
    """What one side says in its turn."""

    role: Role
    content: str


Messages = Sequence[Mapping[str, object]]
"""A conversation as people write it: plain dicts with "role" and "content"."""


@dataclass(frozen=True)
class Encoded:
    """A conversation's tokens, and for each of them whether the assistant is to produce it."""

    tokens: list[int]
    answer: list[bool]


@dataclass(frozen=True)
class Ends:
    """Where an answer is over: at one of these tokens or, where `text` is not empty, at a text."""

    ids: frozenset[int]
    text: str


@dataclass(frozen=True)
class ChatTemplate:
    """How each role's turn is written, with '{content}' where its words stand.

    `<bos>` and `<eos>` are the tokenizer's own tokens, whatever they are called there, and names
    like `<|im_end|>` are special tokens that it must have. What precedes the assistant's content
    invites the answer, and what follows ends it.
    """

    system: str
    user: str
    assistant: str

    def __post_init__(self) -> None:
        for role in ROLES:
            self._around(role)
        if not self._around("assistant")[1]:
            raise UserError(
                f"The chat template's assistant turn is {self.assistant!r}, where nothing ends an "
                f"answer; put '{EOS}' after '{{content}}'."
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, object], where: str) -> ChatTemplate:
        """Build a template from plain values; `where` names the place in error messages."""
        for role in ROLES:
            if role not in values:
                raise UserError(
                    f"{where}: {role!r} is missing; a chat template says how the turns of "
                    f"{', '.join(ROLES)} are written."
                )
        try:
            return from_mapping(cls, values, where)
        except UserError as error:  # what is wrong with a turn's text does not know where it stands
            if str(error).startswith(where):
                raise
            raise UserError(f"{where}: {error}") from error

    def to_dict(self) -> dict[str, str]:
        """The template as plain values that `from_dict` reads back."""
        return asdict(self)

    @property
    def special_names(self) -> list[str]:
        """The special tokens that the tokenizer must have, besides its own BOS and EOS."""
        texts = [text for role in ROLES for text in self._around(role)]
        found = dict.fromkeys(name for text in texts for name in SPECIAL.findall(text))
        return [name for name in found if name not in {BOS, EOS}]

    def encode(self, messages: Messages, tokenizer: Tokenizer, bos: bool) -> Encoded:
        """Turn a conversation into tokens."""
        return self._encode([check_messages(messages, "The conversation")], tokenizer, bos)[0]

    def encode_many(
        self, conversations: Sequence[Messages], tokenizer: Tokenizer, bos: bool
    ) -> list[Encoded]:
        """Encode conversations in parallel."""
        numbered = enumerate(conversations, 1)
        checked = [check_messages(messages, f"conversation {n}") for n, messages in numbered]
        return self._encode(checked, tokenizer, bos)

    def prompt(self, messages: Messages, tokenizer: Tokenizer, bos: bool) -> list[int]:
        """The tokens of the conversation so far, and the invitation to answer."""
        checked = check_messages(messages, "The conversation")
        if checked[-1]["role"] != "user":
            raise UserError(
                f"The conversation, message {len(checked)}: the last to speak is the "
                f"{checked[-1]['role']}, but only a user can be answered; add a user's message."
            )
        tokens = self._encode([checked], tokenizer, bos)[0].tokens
        return tokens + self._frame("assistant", tokenizer).before

    def ends(self, tokenizer: Tokenizer) -> Ends:
        """Where an answer is over: EOS always, and what the template puts after an answer."""
        _, ending = self._around("assistant")
        found = SPECIAL.search(ending)
        if not found:
            return Ends(frozenset({tokenizer.eos_id}), ending)
        return Ends(frozenset({tokenizer.eos_id, _special_id(found[0], tokenizer)}), "")

    def _encode(
        self, conversations: list[list[Message]], tokenizer: Tokenizer, bos: bool
    ) -> list[Encoded]:
        frames = {role: self._frame(role, tokenizer) for role in ROLES}
        said = [message["content"] for messages in conversations for message in messages]
        contents = iter(tokenizer.encode_many(said))
        start = [tokenizer.bos_id] if bos else []
        return [_joined(messages, contents, frames, start) for messages in conversations]

    def _frame(self, role: Role, tokenizer: Tokenizer) -> _Frame:
        before, after = self._around(role)
        # An answer ends with the first special token, or with the whole text if there is none.
        special = SPECIAL.search(after)
        end = special.end() if special else len(after)
        return _Frame(*(_tokens(text, tokenizer) for text in (before, after[:end], after[end:])))

    def _around(self, role: Role) -> tuple[str, str]:
        """The texts before and after a role's content."""
        template = getattr(self, role)
        pieces = parts(template)
        places = [number for number, (_, is_name) in enumerate(pieces) if is_name]
        if [pieces[place][0] for place in places] != ["content"]:
            raise UserError(
                f"The chat template's {role} turn is {template!r}, but must hold '{{content}}' "
                f"exactly once and no other name; write it like '{role.title()}:{{content}}{EOS}'."
            )
        before, after = pieces[: places[0]], pieces[places[0] + 1 :]
        return "".join(text for text, _ in before), "".join(text for text, _ in after)


TEMPLATES = {
    # Needs no token but EOS. No space after the colon, for our tokenizers give a first word one.
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
    """Check each message, and that the user and the assistant take turns after any system's."""
    if not messages:
        raise UserError(f"{where}: there is no message; a conversation needs a user's at least.")
    checked: list[Message] = []
    for number, message in enumerate(messages, 1):
        here = f"{where}, message {number}"
        checked.append(_checked(message, here))
        before = checked[-2]["role"] if number > 1 else None
        _check_turn(before, checked[-1]["role"], here)
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
    if HALF_CHARACTER.search(content):
        raise UserError(
            f"{where}: the content holds half a surrogate pair (\\ud800 to \\udfff), which is no "
            f"text; correct it."
        )
    return {"role": role, "content": content}


def _check_turn(before: Role | None, role: Role, where: str) -> None:
    follows: dict[Role | None, tuple[Role, ...]] = {
        None: ("system", "user"), "system": ("user",), "user": ("assistant",),
        "assistant": ("user",),
    }  # fmt: skip
    if role not in follows[before]:
        place = f"after the {before}'s" if before else "first"
        raise UserError(
            f"{where}: the {role} cannot speak {place}; a system message may come first, and then "
            f"the user and the assistant speak by turns, the user first."
        )


@dataclass(frozen=True)
class _Frame:
    """The tokens around a role's content; of those after it, `ending` belongs to an answer."""

    before: list[int]
    ending: list[int]
    rest: list[int]


def _joined(
    messages: list[Message],
    contents: Iterator[list[int]],
    frames: Mapping[Role, _Frame],
    start: list[int],
) -> Encoded:
    """Lay turns end to end, each with the next one of `contents`."""
    tokens, answer = [*start], [False] * len(start)
    for message in messages:
        frame = frames[message["role"]]
        said = [*next(contents), *frame.ending]
        # An empty answer is a gap in the data: nobody should learn to say nothing.
        counts = message["role"] == "assistant" and bool(message["content"].strip())
        tokens += [*frame.before, *said, *frame.rest]
        answer += [False] * len(frame.before) + [counts] * len(said) + [False] * len(frame.rest)
    return Encoded(tokens, answer)


def _tokens(text: str, tokenizer: Tokenizer) -> list[int]:
    """The tokens of a template's text, in which special tokens are written by name."""
    tokens: list[int] = []
    for stretch in filter(None, SPECIAL.split(text)):
        is_special = SPECIAL.fullmatch(stretch)
        tokens += [_special_id(stretch, tokenizer)] if is_special else tokenizer.encode(stretch)
    return tokens


def _special_id(name: str, tokenizer: Tokenizer) -> int:
    if name == BOS:
        return tokenizer.bos_id
    return tokenizer.eos_id if name == EOS else tokenizer.special_id(name)
