"""Conversations as token ids: how turns are marked, and which tokens are the assistant's to say.

The texts of a template and of a message are encoded apart and never run into each other. So a
conversation that goes on begins with exactly the tokens that it had, and a cache of them stays
good; and since no text can spell a special token, nobody can forge the end of a turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypedDict

from qkv.config.fields import from_mapping
from qkv.errors import UserError
from qkv.text.pieces import BOS, EOS
from qkv.text.template import HALF_CHARACTER, parts
from qkv.text.tokenizer import Tokenizer
from qkv.text.turns import ROLES, SPECIAL, Encoded, Role, Speller, Turn, around


class Message(TypedDict):
    """What one side says in its turn."""

    role: Role
    content: str


Messages = Sequence[Mapping[str, object]]
"""A conversation as people write it: plain dicts with "role" and "content"."""


@dataclass(frozen=True)
class Ends:
    """Where an answer is over: at one of these tokens or, where `text` is not empty, at a text."""

    ids: frozenset[int]
    text: str


@dataclass(frozen=True)
class ChatTemplate:
    """How each role's turn is written, with '{content}' where its words stand.

    `<bos>` and `<eos>` are the tokenizer's own tokens, whatever they are called there; names like
    `<|im_end|>` are special tokens that it must have, unless they are among `plain`; and what else
    it has for a special token, such as `[INST]`, is one here too. What precedes the assistant's
    content invites the answer, and what follows ends it. Where `system` is "", nobody can give a
    system message.
    """

    system: str
    user: str
    assistant: str
    default_system: str | None = None
    """What the system says where a conversation does not tell; None if it then says nothing."""
    user_after_system: str = ""
    """The user's turn right after the system's, where it is written differently."""
    trim: bool = False
    """Whether white space around what is said is left out."""
    answer_space: bool = False
    """Whether the space before an answer is the assistant's to say, and so not in a prompt."""
    plain: tuple[str, ...] = ()
    """Names like `<|user|>` that are nothing but text."""

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

    def to_dict(self) -> dict[str, Any]:
        """The template as plain values that `from_dict` reads back: the turns, and what differs."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        usual = {field.name: field.default for field in fields(self)}
        return {name: value for name, value in values.items() if value != usual[name]}

    @property
    def special_names(self) -> list[str]:
        """The special tokens that the tokenizer must have, besides its own BOS and EOS."""
        written = [self.system, self.user, self.assistant, self.user_after_system]
        texts = [text for turn in written if turn for text in around(turn)]
        found = dict.fromkeys(name for text in texts for name in SPECIAL.findall(text))
        return [name for name in found if name not in {BOS, EOS, *self.plain}]

    def encode(self, messages: Messages, tokenizer: Tokenizer, bos: bool) -> Encoded:
        """Turn a conversation into tokens; with `bos`, it begins with BOS, but never with two."""
        turns = self.turns(messages, "The conversation")
        return self._speller(tokenizer).encode([turns], bos)[0]

    def encode_many(
        self, conversations: Sequence[Messages], tokenizer: Tokenizer, bos: bool
    ) -> list[Encoded]:
        """Encode conversations in parallel."""
        numbered = enumerate(conversations, 1)
        turns = [self.turns(messages, f"conversation {n}") for n, messages in numbered]
        return self._speller(tokenizer).encode(turns, bos)

    def prompt(self, messages: Messages, tokenizer: Tokenizer, bos: bool) -> list[int]:
        """The tokens of the conversation so far, and the invitation to answer."""
        turns = self.turns(messages, "The conversation")
        if turns[-1].role != "user":
            raise UserError(
                f"The conversation, message {len(messages)}: the last to speak is the "
                f"{turns[-1].role}, but only a user can be answered; add a user's message."
            )
        speller = self._speller(tokenizer)
        return speller.encode([turns], bos)[0].tokens + speller.invitation(turns)

    def ends(self, tokenizer: Tokenizer) -> Ends:
        """Where an answer is over: EOS always, and what the template puts after an answer."""
        _, ending = around(self.assistant)
        speller = self._speller(tokenizer)
        found = speller.special.search(ending)
        if not found:
            return Ends(frozenset({tokenizer.eos_id}), ending)
        return Ends(frozenset({tokenizer.eos_id, speller.special_id(found[0])}), "")

    def turns(self, messages: Messages, where: str) -> list[Turn]:
        """Check a conversation, and find how each of its turns is written."""
        said = check_messages(messages, where)
        if said[0]["role"] == "system" and not self.system:
            raise UserError(
                f"{where}, message 1: this chat template has no place for a system message; say "
                f"it in the user's first message."
            )
        turns = [self._turn(message) for message in said]
        if turns[0].role != "system" and self.default_system is not None:
            turns.insert(0, Turn("system", self.system, self.default_system))
        if self.user_after_system and turns[0].role == "system" and len(turns) > 1:
            turns[1] = turns[1]._replace(written=self.user_after_system)
        return turns

    def _speller(self, tokenizer: Tokenizer) -> Speller:
        return Speller(tokenizer, self.assistant, self.answer_space, self.plain)

    def _turn(self, message: Message) -> Turn:
        role, content = message["role"], message["content"]
        return Turn(role, getattr(self, role), content.strip() if self.trim else content)

    def _check(self, role: Role, written: str, optional: bool) -> None:
        if optional and not written:
            return
        if [name for name, is_name in parts(written) if is_name] != ["content"]:
            raise UserError(
                f"The chat template's {role} turn is {written!r}, but must hold '{{content}}' "
                f"exactly once and no other name; write it like '{role.title()}:{{content}}{EOS}'."
            )


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
        None: ("system", "user"),
        "system": ("user",),
        "user": ("assistant",),
        "assistant": ("user",),
    }
    if role not in follows[before]:
        place = f"after the {before}'s" if before else "first"
        raise UserError(
            f"{where}: the {role} cannot speak {place}; a system message may come first, and then "
            f"the user and the assistant speak by turns, the user first."
        )
