"""Instruction tuning: conversations in, a decoder that answers out; only answers are learnt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from qkv.config import ChatConfig
from qkv.data import (
    Batch,
    Examples,
    ExampleStream,
    Mode,
    Specials,
    encode_examples,
    example_batches,
    kept_examples,
    read_conversations,
)
from qkv.device import is_on, mixed_precision
from qkv.evaluation import Score, exact_match, loss
from qkv.run.job import Finished, Plan, fingerprint, text_length
from qkv.run.language import eager_loss, fitting_config, fresh_model, save_speaker, total_loss
from qkv.run.start import Start, find_start
from qkv.tasks import LanguageModel, Tokenizers
from qkv.tasks.folder import WEIGHTS, Prompting
from qkv.text import TEMPLATES, ChatTemplate, Message, Tokenizer, train_tokenizer
from qkv.text.turns import ROLES
from qkv.training import entropy, next_token
from qkv.training.loop import Scores
from qkv.weights import load_weights, read_tensors

VALID_BATCH_TOKENS = 4096
SCORED_ANSWERS = 200  # of the validation records, answered at each validation


class Instruction:
    """The job of `task = "instruct"`."""

    objective = staticmethod(next_token)

    def __init__(self, plan: Plan) -> None:
        recipe, device = plan.recipe, plan.device
        self.plan, start = plan, find_start(recipe, "decoder")
        self.records = read_conversations(recipe.data, recipe.train.seed)
        self.asked = {
            "valid": answered(self.records.valid),
            "test": answered(self.records.test),
        }
        template = chat_template(recipe.chat, start.prompting.chat if start else None)
        bos = start.prompting.talk_bos if start else recipe.data.bos
        tokenizer = self._tokenizer(start)
        tokenizer.add_special(template.special_names)
        self.tokenizers = Tokenizers(tokenizer, tokenizer)
        self.config = config = fitting_config(plan, start, tokenizer)
        length = text_length(recipe, config)

        def encode(name: str, conversations: list[list[Message]]) -> Examples:
            examples = encode_examples(conversations, template, tokenizer, bos)
            kept, sentence = kept_examples(examples, length)
            plan.say(f"{name}: {sentence}")
            return examples.take(kept)

        train = encode("train", self.records.train)
        self.valid = encode("valid", self.records.valid)
        self.model = fresh_model(plan, config, start)
        self.speaker = LanguageModel(self.model, tokenizer, recipe.decode, Prompting(bos, template))
        self.one_shape = config.can_pack and is_on(recipe.train.packing, device)
        mode: Mode = "packed" if self.one_shape else "padded"
        self.stream = ExampleStream(
            train,
            self.special,
            mode,
            recipe.train.batch_tokens,
            recipe.train.accumulate,
            recipe.train.seed,
        )
        self.text = fingerprint(len(train), train.tokens.tokens, self.valid.tokens.tokens)
        self.frequencies_loss = entropy(np.bincount(train.tokens.tokens[train.counts]))
        self.loss_sum = eager_loss(plan, self.model)

    def _tokenizer(self, start: Start | None) -> Tokenizer:
        kept = self.plan.kept_tokenizers or (start.tokenizers if start else None)
        if kept:
            return kept.target
        contents = [turn["content"] for record in self.records.train for turn in record]
        template = chat_template(self.plan.recipe.chat).to_dict()  # its words must be spelt too
        return train_tokenizer([*contents, *template.values()], self.plan.recipe.tokenizer)

    @property
    def special(self) -> Specials:
        """The ids of the tokens that are not text."""
        return Specials(self.config.pad_id, self.config.bos_id, self.config.eos_id)

    def _batches(self) -> Iterator[Batch]:
        for batch in example_batches(self.valid, VALID_BATCH_TOKENS, self.special):
            yield batch.to(self.plan.device)

    def evaluate(self) -> Scores:
        """The loss of the answers, and how many are given word for word."""
        loss, n_labels = total_loss(self.model, self.loss_sum, self._batches())
        scores = {"valid_loss": loss / n_labels}
        config = self.plan.recipe.train
        if config.valid_bleu and self.asked["valid"]:
            with mixed_precision(config, self.plan.device):
                found = answer_score(self.speaker, self.asked["valid"][:SCORED_ANSWERS])
            scores["exact_match"] = found.value
        return scores

    def keep(self) -> None:
        """Make the run's folder a model folder of the weights as they are now."""
        save_speaker(self.plan, self.speaker)

    def finish(self) -> Finished:
        """Measure the best weights on validation records, and answer those and the test's."""
        best = LanguageModel.load(self.plan.folder, self.plan.device)
        path = self.plan.folder / WEIGHTS
        load_weights(self.model, read_tensors(path), path)
        scores = {"valid": [loss(*total_loss(self.model, self.loss_sum, self._batches()))]}
        wanted = {"valid": self.plan.recipe.train.valid_bleu, "test": True}
        for name, split in self.asked.items():
            if split and wanted[name]:
                scores.setdefault(name, []).append(answer_score(best, split))
        return Finished(best, scores)


def chat_template(config: ChatConfig, before: ChatTemplate | None = None) -> ChatTemplate:
    """The template that the recipe names, or the one before, with the turns that it writes."""
    if config.template == "auto":
        known = (before or TEMPLATES["plain"]).to_dict()
    else:
        known = TEMPLATES[config.template].to_dict()
    own: dict[str, Any] = {role: getattr(config, role) for role in ROLES if getattr(config, role)}
    return ChatTemplate.from_dict({**known, **own}, "[chat]")


def answer_score(speaker: LanguageModel, records: list[list[Message]]) -> Score:
    """The share of records whose last answer the model gives word for word, greedily."""
    asked = [messages[:-1] for messages in records]
    found = speaker.answers(asked, beams=1, n_best=1, sample=False)
    return exact_match(found, [messages[-1]["content"] for messages in records])


def answered(records: list[list[Message]]) -> list[list[Message]]:
    """The records that end with an answer, which can be compared."""
    return [messages for messages in records if messages[-1]["role"] == "assistant"]
