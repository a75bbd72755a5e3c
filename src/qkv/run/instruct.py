"""Instruction tuning: conversations in, a decoder that answers out; only answers are learned."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable
from typing import Any, Generic

from qkv.config import ChatConfig
from qkv.convert import Prompting
from qkv.data import (
    ConversationItems,
    Splits,
    encode_conversations,
    filter_conversations,
    read_conversations,
    validation_batches,
)
from qkv.evaluation import Score, evaluate, loss
from qkv.run.job import Example, ExampleJob
from qkv.tasks import LanguageModel
from qkv.text import ROLES, TEMPLATES, ChatTemplate, Message, Tokenizer

SCORED_ANSWERS = 200  # validation records that are answered at each validation

Conversation = list[Message]


class ChatJob(ExampleJob[Example], ABC, Generic[Example]):
    """A job whose examples are conversations, written by a chat template."""

    result: LanguageModel

    def read_data(self) -> None:
        """Choose the template and whether BOS comes first: by the recipe, or by the start."""
        prompting = self.start.prompting if self.start else Prompting(self.recipe.data.bos)
        if prompting.chat_problem:
            self.say(prompting.chat_problem)
        self.template = chat_template(self.recipe.chat, prompting.chat)
        self.bos = prompting.talk_bos
        super().read_data()

    def special_tokens(self, tokenizer: Tokenizer) -> list[str]:
        """Name those that the chat template needs."""
        return self.template.special_names

    def build_result(self, model: Any) -> LanguageModel:
        """Build a language model that chats."""
        prompting = Prompting(self.bos, self.template)
        return LanguageModel(model, self.tokenizer, self.recipe.decode, prompting)


class InstructJob(ChatJob[Conversation]):
    """The job of `task = "instruct"`."""

    train_items: ConversationItems

    def read_splits(self) -> Splits[Conversation]:
        """Read conversations; all that begin with one question are in the same split."""
        template = self.recipe.data.template
        return self.split(lambda paths: read_conversations(paths, template), key=first_question)

    def texts(self) -> Iterable[str]:
        """Yield all messages, and the template's own words, which must be spelt too."""
        yield from (turn["content"] for record in self.splits.train for turn in record)
        yield from (text for text in self.template.to_dict().values() if isinstance(text, str))

    def encode(self, split: str) -> ConversationItems:
        """Encode the conversations of a split; drop those without answer or too long."""
        items = encode_conversations(
            self.examples(split), self.template, self.tokenizer, self.special, self.bos
        )
        items, sentence = filter_conversations(items, self.max_length())
        self.say(f"{split}: {sentence}")
        return items

    def valid_scores(self) -> list[Score]:
        """Answer some validation records."""
        return self._answers(self.splits.valid, SCORED_ANSWERS)

    def scores(self, split: str) -> list[Score]:
        """Measure the loss of the validation answers, and answer all records."""
        if split == "test":
            return self._answers(self.splits.test)
        batches = validation_batches(self.valid_items, self.valid_tokens)
        return [loss(*self.total_loss(batches)), *self._answers(self.splits.valid)]

    def _answers(self, records: list[Conversation], most: int | None = None) -> list[Score]:
        answered = [messages for messages in records if messages[-1]["role"] == "assistant"]
        if not answered or (records is self.splits.valid and not self.recipe.train.valid_bleu):
            return []
        return evaluate(self.spread_result(), answered[:most]).scores


def first_question(messages: Conversation) -> str:
    """Return what the user says first."""
    return next(message["content"] for message in messages if message["role"] == "user")


def chat_template(config: ChatConfig, before: ChatTemplate | None = None) -> ChatTemplate:
    """Return the template that the recipe names, or the one before, with the recipe's turns."""
    template = (before or TEMPLATES["plain"]) if config.template == "auto" else None
    known = (template or TEMPLATES[config.template]).to_dict()
    own: dict[str, Any] = {role: getattr(config, role) for role in ROLES if getattr(config, role)}
    return ChatTemplate.from_dict({**known, **own}, "[chat]")
