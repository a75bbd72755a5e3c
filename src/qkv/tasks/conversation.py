"""A conversation: messages that a model answers, each read once, the oldest dropped at need."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from qkv.config import DecodeConfig
from qkv.decode.request import USUAL_LENGTH
from qkv.errors import UserError
from qkv.files import reading, refuse_special, write_json
from qkv.tasks.texts import DecodeSettings, decode_config
from qkv.tasks.writer import Remembered
from qkv.text.chat import ChatTemplate, Message, Messages, check_messages

if TYPE_CHECKING:
    from qkv.tasks.language import LanguageModel

Tell = Callable[[str], None]


class Conversation:
    """Messages so far, and what the model has read of them."""

    def __init__(
        self,
        speaker: LanguageModel,
        template: ChatTemplate,
        messages: Sequence[Mapping[str, object]],
        settings: DecodeConfig,
        tell: Tell | None = None,
    ) -> None:
        _check_settings(settings)
        self.speaker, self.template, self.settings = speaker, template, settings
        self.messages: list[Message] = (
            check_messages(messages, "The conversation") if messages else []
        )
        self.remembered = Remembered()
        self.forgotten = 0  # messages that the model no longer sees
        ends = template.ends(speaker.tokenizer)
        self.ends = sorted(ends.ids | {*speaker.model.config.ends})
        self.end_text = ends.text
        self.n_written = 0  # tokens of the newest answer, without its end
        self._n_retries = 0  # of the newest answer
        self.tell: Tell = tell or (lambda sentence: warnings.warn(sentence, stacklevel=3))

    def __repr__(self) -> str:
        count = len(self.messages)
        return f"Conversation({count} message{'' if count == 1 else 's'} with {self.speaker!r})"

    def say(self, content: str) -> str:
        """Say something and get the whole answer."""
        return "".join(self.stream(content))

    def stream(self, content: str) -> Generator[str]:
        """Say something and get the answer piece by piece; both join the conversation.

        An answer that is not read to its end joins it as far as it was read.
        """
        yield from self._answer([*self.messages, {"role": "user", "content": content}], n_retries=0)

    def retry(self) -> Generator[str]:
        """Answer the last user message once more, piece by piece, with other random draws."""
        asked = self.messages[: len(self.messages) - self._ends_with("assistant")]
        if not asked or asked[-1]["role"] != "user":
            raise UserError("Nothing was said yet that could be answered again; say something.")
        answered = len(asked) < len(self.messages)
        yield from self._answer(asked, self._n_retries + answered)

    def undo(self) -> str:
        """Take the last user message and its answer back; return the message."""
        kept = len(self.messages) - self._ends_with("assistant")
        if not kept or self.messages[kept - 1]["role"] != "user":
            raise UserError("Nothing was said yet that could be taken back; say something.")
        content = self.messages[kept - 1]["content"]
        del self.messages[kept - 1 :]
        self.forgotten = self._n_retries = 0  # there may be room again
        return content

    @property
    def system(self) -> str:
        """The system message, or ""."""
        first = self.messages[:1]
        return first[0]["content"] if first and first[0]["role"] == "system" else ""

    @system.setter
    def system(self, content: str) -> None:
        if content and not self.template.system:
            raise UserError(
                "This model's chat template has no place for a system message; say it in your "
                "first message."
            )
        turns = self.messages[bool(self.messages) and self.messages[0]["role"] == "system" :]
        opening: list[Message] = [{"role": "system", "content": content}] if content else []
        self.messages = [*opening, *turns]

    def change(self, **settings: Unpack[DecodeSettings]) -> None:
        """Change settings of decoding from the next answer on."""
        changed = decode_config(self.settings, settings)
        _check_settings(changed)
        self.settings = changed

    @property
    def n_seen(self) -> int:
        """Tokens of the context that the newest prompt and its answer take."""
        return len(self.remembered.tokens) + 1 if self.remembered.tokens else 0

    @property
    def context(self) -> int:
        """Tokens that the model can see at once."""
        return self.speaker.model.config.max_length

    def _ends_with(self, role: str) -> bool:
        return bool(self.messages) and self.messages[-1]["role"] == role

    def _answer(self, messages: list[Message], n_retries: int) -> Generator[str]:
        """Answer the last of these messages, which then are the conversation."""
        before, self.messages = self.messages, messages
        answer: list[str] = []
        try:
            prompt, settings = self.next_prompt()
            self.n_written, self._n_retries = 0, n_retries
            pieces = self.speaker.flow(
                prompt,
                settings,
                ends=self.ends,
                remembered=self.remembered,
                id=len(messages),  # or each turn would get the same draws
                draw=n_retries,
            )
            for piece in pieces:
                is_first = self.template.answer_space and not answer
                answer.append(piece.removeprefix(" ") if is_first else piece)
                self.n_written = self.n_seen - len(prompt)
                yield answer[-1]
        except UserError:
            self.messages = before  # as if it had not been said
            raise
        finally:
            if self.messages is messages:
                self.messages = [*messages, {"role": "assistant", "content": "".join(answer)}]
        is_full = self.n_seen >= self.context
        if (
            is_full and settings.max_length != self.settings.max_length
        ):  # else it is as long as was asked for
            self.tell("the answer was cut off: the model's context is full")

    def next_prompt(self) -> tuple[list[int], DecodeConfig]:
        """The tokens that the next answer continues, and its settings: its room, what ends it."""
        prompt = self._prompt()
        stops = (*self.settings.stop, self.end_text) if self.end_text else self.settings.stop
        room = min(self.settings.max_length or self.context, self.context - len(prompt))
        return prompt, dataclasses.replace(self.settings, max_length=room, stop=stops)

    def _wanted(self) -> int:
        """Tokens to reserve for an answer: as many as asked for, at most half the context."""
        return min(self.settings.max_length or USUAL_LENGTH, self.context // 2)

    def _prompt(self) -> list[int]:
        """The tokens of as much of the conversation as fits: the oldest exchanges are dropped."""
        system = [message for message in self.messages if message["role"] == "system"]
        turns = self.messages[len(system) + self.forgotten :]
        tokenizer, bos = self.speaker.tokenizer, self.speaker.prompting.talk_bos
        dropped = 0
        while True:
            prompt = self.template.prompt([*system, *turns[dropped:]], tokenizer, bos)
            if len(prompt) + self._wanted() <= self.context:
                break
            if dropped + 2 >= len(turns):
                raise UserError(
                    f"This message makes a prompt of {len(prompt):,} tokens, but the model's "
                    f"context is {self.context:,}, of which {self._wanted():,} are for the "
                    f"answer; say less at a time."
                )
            dropped += 2
        if dropped:
            self.forgotten += dropped
            self.tell(
                f"the conversation has outgrown the model's context of {self.context:,} tokens: "
                f"its first {self.forgotten} messages are no longer seen"
            )
        return prompt


def _check_settings(settings: DecodeConfig) -> None:
    if settings.beams > 1 and not settings.sample:
        raise UserError("decode: an answer is given as it comes; chat with beams = 1.")
    if settings.n_best > 1:
        raise UserError("decode: a conversation goes on from one answer; chat with n_best = 1.")


def save_messages(messages: Messages, path: Path) -> None:
    """Write a conversation as a JSON list of messages; replace only a file of that kind."""
    if path.exists():
        refuse_special(path)
        try:
            load_messages(path)
        except UserError as error:
            raise UserError(
                f"{path} is there already and no saved conversation; choose another name."
            ) from error
    write_json(path, list(messages))


def load_messages(path: Path) -> list[Message]:
    """Read a JSON list of messages, or an object that has one under "messages"."""
    refuse_special(path)
    with reading(path):
        text = path.read_bytes()
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error}); name a saved conversation.") from error
    if isinstance(content, Mapping):
        content = content.get("messages")
    if not isinstance(content, list):
        raise UserError(
            f"{path} holds no list of messages; a saved conversation is written like "
            f'[{{"role": "user", "content": "…"}}].'
        )
    return check_messages(content, str(path)) if content else []
