"""A conversation: messages that a model answers, each read once, the oldest dropped at need."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from qkv.config import DecodeConfig
from qkv.decode.request import USUAL_LENGTH
from qkv.errors import UserError
from qkv.tasks.writer import Remembered
from qkv.text.chat import ChatTemplate, Message, check_messages

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
        if settings.beams > 1 and not settings.sample:
            raise UserError("decode: an answer is given as it comes; chat with beams = 1.")
        if settings.n_best > 1:
            raise UserError("decode: a conversation goes on from one answer; chat with n_best = 1.")
        self.speaker, self.template = speaker, template
        self.messages: list[Message] = (
            check_messages(messages, "The conversation") if messages else []
        )
        self.remembered = Remembered()
        self.forgotten = 0  # messages that the model no longer sees
        ends = template.ends(speaker.tokenizer)
        self.ends = sorted(ends.ids | {*speaker.model.config.ends})
        stops = (*settings.stop, ends.text) if ends.text else settings.stop
        self.settings = dataclasses.replace(settings, stop=stops)
        self.tell: Tell = tell or (lambda sentence: warnings.warn(sentence, stacklevel=3))

    def say(self, content: str) -> str:
        """Say something and get the whole answer."""
        return "".join(self.stream(content))

    def stream(self, content: str) -> Iterator[str]:
        """Say something and get the answer piece by piece; both join the conversation.

        An answer that is not read to its end joins it as far as it was read.
        """
        before = list(self.messages)
        self.messages.append({"role": "user", "content": content})
        answer: list[str] = []
        try:
            prompt = self._prompt()
            room = self._room(prompt)
            settings = dataclasses.replace(self.settings, max_length=room)
            pieces = self.speaker.flow(
                prompt,
                settings,
                ends=self.ends,
                remembered=self.remembered,
                id=len(self.messages),  # or each turn would get the same draws
            )
            for piece in pieces:
                is_first = self.template.answer_space and not answer
                answer.append(piece.removeprefix(" ") if is_first else piece)
                yield answer[-1]
        except UserError:
            self.messages = before  # as if it had not been said
            raise
        finally:
            if len(self.messages) > len(before):
                self.messages.append({"role": "assistant", "content": "".join(answer)})
        is_full = len(self.remembered.tokens) + 1 >= self._context
        if is_full and room != self.settings.max_length:  # else it is as long as was asked for
            self.tell("the answer was cut off: the model's context is full")

    @property
    def _context(self) -> int:
        return self.speaker.model.config.max_length

    def _wanted(self) -> int:
        """Tokens to reserve for an answer: as many as asked for, at most half the context."""
        return min(self.settings.max_length or USUAL_LENGTH, self._context // 2)

    def _room(self, prompt: list[int]) -> int:
        asked = self.settings.max_length or self._context
        return min(asked, self._context - len(prompt))

    def _prompt(self) -> list[int]:
        """The tokens of as much of the conversation as fits: the oldest exchanges are dropped."""
        system = [message for message in self.messages if message["role"] == "system"]
        turns = self.messages[len(system) + self.forgotten :]
        dropped = 0
        while True:
            prompt = self._encode([*system, *turns[dropped:]])
            if len(prompt) + self._wanted() <= self._context:
                break
            if dropped + 2 >= len(turns):
                raise UserError(
                    f"This message makes a prompt of {len(prompt):,} tokens, but the model's "
                    f"context is {self._context:,}, of which {self._wanted():,} are for the "
                    f"answer; say less at a time."
                )
            dropped += 2
        if dropped:
            self.forgotten += dropped
            self.tell(
                f"the conversation has outgrown the model's context of {self._context:,} tokens: "
                f"its first {self.forgotten} messages are no longer seen"
            )
        return prompt

    def _encode(self, messages: list[Message]) -> list[int]:
        speaker = self.speaker
        return self.template.prompt(messages, speaker.tokenizer, speaker.prompting.talk_bos)
