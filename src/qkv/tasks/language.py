"""Language models: text goes on from a prompt, is scored, chosen among, or answers in a chat."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, overload

import torch

from qkv.config import DecodeConfig
from qkv.convert.model_folder import (
    Prompting,
    StoredModel,
    Tokenizers,
    check_special,
    load_config,
    load_family,
    load_prompting,
    load_tokenizers,
    model_content,
    save_model_folder,
    says_how_to_draw,
)
from qkv.decode import Engine, Hypothesis
from qkv.device import lay_by_columns
from qkv.errors import UserError
from qkv.model import Decoder
from qkv.tasks.conversation import Conversation, Tell
from qkv.tasks.few_shot import Choice, Normalize
from qkv.tasks.likelihood import Likelihood, choices, likelihoods
from qkv.tasks.task_object import TaskObject
from qkv.tasks.texts import BatchSettings, DecodeSettings, Progress, decode_config, listed_texts
from qkv.tasks.writer import Remembered, Writer
from qkv.text import TextStream, Tokenizer, cut_at_stop
from qkv.text.chat import TEMPLATES, ChatTemplate, Messages, check_messages

if TYPE_CHECKING:
    from qkv.inspect import Trace


@dataclass(frozen=True)
class Completion:
    """What came after a prompt."""

    text: str
    tokens: list[int]
    log_probability: float  # of the tokens
    finished: bool  # ended by itself, with EOS
    stopped: bool  # ended by a stop string, which is no part of the text


class LanguageModel(TaskObject):
    """A decoder with its vocabulary."""

    def __init__(
        self,
        model: Decoder,
        tokenizer: Tokenizer,
        decode: DecodeConfig,
        prompting: Prompting | None = None,
        says_how_to_draw: bool = True,
    ) -> None:
        """Take a model and its settings; `says_how_to_draw`: whether these decide on sampling."""
        self.model, self.tokenizer, self.decode = model, tokenizer, decode
        self.prompting, self.says_how_to_draw = prompting or Prompting(), says_how_to_draw
        self.writer = Writer(model, tokenizer)

    @property
    def engine(self) -> Engine:
        """The engine that runs all requests of this model."""
        return self.writer.engine

    @classmethod
    def _of(cls, folder: StoredModel, device: torch.device) -> LanguageModel:
        _, config, decode = load_config(folder)
        model = load_family(folder, config, Decoder, device)
        if device.type == "cpu":
            model = lay_by_columns(model)
        tokenizer, prompting = load_tokenizers(folder, config).target, load_prompting(folder)
        if prompting.bos:
            check_special(folder, config, "bos_id")
        return cls(model, tokenizer, decode, prompting, says_how_to_draw(folder))

    def save(self, folder: str | Path) -> None:
        """Write a model folder."""
        content = model_content("generate", self.model.config, self.decode, self.prompting)
        tokenizers = Tokenizers(self.tokenizer, self.tokenizer)
        save_model_folder(folder, content, self.model, tokenizers)

    @overload
    def generate(  # type: ignore[overload-overlap]  # a str is an iterable of strings too
        self, prompts: str = "", **settings: Unpack[BatchSettings]
    ) -> str: ...
    @overload
    def generate(self, prompts: Iterable[str], **settings: Unpack[BatchSettings]) -> list[str]: ...
    def generate(
        self, prompts: str | Iterable[str] = "", **settings: Unpack[BatchSettings]
    ) -> str | list[str]:
        """Return what comes after a prompt, or after each of many.

        `settings` are those of `DecodeConfig` and `n_best`. A text ends where the context is full.
        """
        if isinstance(prompts, str):
            return self.generate([prompts], **settings)[0]
        return [completions[0].text for completions in self.n_best(prompts, **settings)]

    def n_best(
        self,
        prompts: str | Iterable[str],
        *,
        truncate: bool = False,
        progress: Progress | None = None,
        first: int = 0,
        **settings: Unpack[DecodeSettings],
    ) -> list[list[Completion]]:
        """The `n_best` completions of each prompt, with what is known of them.

        `truncate` drops the beginning of a prompt that is too long for the context. `first` is the
        index of the first prompt, where these go on from others: it decides random draws.
        """
        config = self.settings(settings)
        encoded = self.encode_prompts([prompts] if isinstance(prompts, str) else prompts, truncate)
        ids = range(first, first + len(encoded))
        results = self.writer.complete(encoded, ids, config, progress=progress)
        found = [
            [self.read(best, prompt, config) for best in hypotheses]
            for prompt, hypotheses in zip(encoded, results, strict=True)
        ]
        self._warn_if_full(
            [
                len(prompt) + len(best.tokens)
                for prompt, (best, *_) in zip(encoded, found, strict=True)
                if not (best.finished or best.stopped) and len(best.tokens) < config.max_length
            ],
            config,
        )
        return found

    def answers(
        self,
        conversations: Iterable[Messages],
        *,
        progress: Progress | None = None,
        **settings: Unpack[DecodeSettings],
    ) -> list[str]:
        """Answer the last message of each of many conversations.

        One that is too long for the context gets an empty answer.
        """
        template = self._template(None)
        ends = template.ends(self.tokenizer)
        end_ids = sorted(ends.ids | {*self.model.config.ends})
        config = self.settings(settings)
        config = dataclasses.replace(config, stop=(*config.stop, *filter(None, [ends.text])))
        prompts = [
            template.prompt(messages, self.tokenizer, self.prompting.talk_bos)
            for messages in conversations
        ]
        limit = self.model.config.max_length
        fitting = [row for row, prompt in enumerate(prompts) if len(prompt) < limit]
        found = [""] * len(prompts)
        results = self.writer.complete(
            [prompts[row] for row in fitting], fitting, config, end_ids, progress
        )
        for row, (best, *_) in zip(fitting, results, strict=True):
            found[row] = self.read(best, [], config).text
        return found

    def stream(
        self,
        prompt: str = "",
        *,
        truncate: bool = False,
        first: int = 0,
        remembered: Remembered | None = None,
        **settings: Unpack[DecodeSettings],
    ) -> Iterator[str]:
        """Yield the text of `generate` as it comes; no piece ends within a character."""
        config = self.settings(settings)
        if config.beams > 1 and not config.sample:
            raise UserError(
                "decode: beam search has no text before its end; stream with beams = 1."
            )
        if config.n_best > 1:
            raise UserError("decode: a stream is one text; stream with n_best = 1.")
        [tokens] = self.encode_prompts([prompt], truncate)
        remembered = remembered or Remembered()
        yield from self.flow(tokens, config, after=tokens, remembered=remembered, id=first)
        length = len(remembered.tokens) + 1
        if length - len(tokens) < config.max_length:
            self._warn_if_full([length], config)

    def flow(
        self,
        prompt: list[int],
        config: DecodeConfig,
        *,
        after: Sequence[int] = (),
        ends: Sequence[int] = (),
        remembered: Remembered | None = None,
        id: int = 0,
        draw: int = 0,
    ) -> Iterator[str]:
        """Yield text after a prompt of tokens, spelt as it is `after` these tokens."""
        text = TextStream(self.tokenizer, config.stop, after)
        for token in self.writer.stream(prompt, config, ends, remembered, id, draw):
            if piece := text.push([token]):
                yield piece
            if text.stopped:
                return
        if piece := text.finish():
            yield piece

    def chat(self, messages: str | Messages, **settings: Unpack[DecodeSettings]) -> str:
        """Answer a message, or the last of a conversation; see `conversation` for many turns."""
        turns: Messages = (
            [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        )
        *before, last = check_messages(turns, "The conversation")
        if last["role"] != "user":
            raise UserError(
                f"The conversation: the last to speak is the {last['role']}, but only a user can "
                f"be answered; add a user's message."
            )
        return self.conversation(messages=before, **settings).say(last["content"])

    def conversation(
        self,
        system: str = "",
        messages: Sequence[Mapping[str, object]] = (),
        template: str | ChatTemplate | None = None,
        tell: Tell | None = None,
        **settings: Unpack[DecodeSettings],
    ) -> Conversation:
        """Begin a chat that goes on turn by turn, each reading only what is new.

        `tell` is called with a sentence when something must be forgotten; by default, a warning.
        """
        opening = [{"role": "system", "content": system}] if system else []
        return Conversation(
            self,
            self._template(template),
            [*opening, *messages],
            self.settings({"beams": 1, "n_best": 1, **settings}),
            tell,
        )

    def _template(self, given: str | ChatTemplate | None) -> ChatTemplate:
        if isinstance(given, str):
            if given not in TEMPLATES:
                known = ", ".join(TEMPLATES)
                raise UserError(f"Unknown chat template {given!r}; it may be one of {known}.")
            given = TEMPLATES[given]
        template = given or self.prompting.chat
        if template is None:
            raise UserError(
                self.prompting.chat_problem
                or "This model was never taught to answer (it has no chat template); train it with "
                "task = 'instruct', or name a template, such as 'plain'."
            )
        return template

    @overload
    def score(self, texts: str) -> Likelihood: ...  # type: ignore[overload-overlap]
    @overload
    def score(self, texts: Iterable[str]) -> list[Likelihood]: ...
    def score(self, texts: str | Iterable[str]) -> Likelihood | list[Likelihood]:
        """Return how likely a text, or each of many, is to the model."""
        if isinstance(texts, str):
            return self.score([texts])[0]
        return self.likelihoods([self._start(tokens) for tokens in self._tokens(texts)])

    def likelihoods(self, sequences: Sequence[list[int]]) -> list[Likelihood]:
        """Return how likely sequences of tokens are, each after its first token."""
        return likelihoods(self.model, sequences, self.tokenizer)

    def choose(
        self,
        prompts: Sequence[str],
        options: Sequence[Sequence[str]],
        normalize: Normalize = "none",
    ) -> list[Choice]:
        """Choose the option with which each prompt most likely goes on."""
        return choices(self, prompts, options, normalize)

    def trace(
        self, source: str | Sequence[str], target: str | Sequence[str] | None = None
    ) -> Trace:
        """Trace the pass that reads a text; a `target` goes on from it and is what counts."""
        from qkv.inspect.trace.from_task import trace_language

        return trace_language(self, source, target)

    def encode(self, text: str) -> list[int]:
        """A text's tokens as the model reads them, with BOS where it knows it."""
        return self._start(self._tokens([text])[0])

    def settings(self, differences: Mapping[str, object]) -> DecodeConfig:
        """The model's own settings of decoding, with what differs."""
        return decode_config(self.decode, differences)

    def _tokens(self, texts: Iterable[str]) -> list[list[int]]:
        return self.tokenizer.encode_many(listed_texts(texts))

    def _start(self, tokens: list[int]) -> list[int]:
        """Put BOS first, where the model knows it; a text needs some token to begin after."""
        if self.prompting.bos:
            return [self.model.config.bos_id, *tokens]
        special = self.model.config
        known = (id for id in (special.eos_id, special.bos_id, 0) if id < special.vocab_size)
        return tokens or [next(known)]

    def encode_prompts(self, prompts: Iterable[str], truncate: bool = False) -> list[list[int]]:
        """Tokens of prompts, which must leave room for another; `truncate` drops beginnings."""
        limit = self.model.config.max_length - 1
        encoded = [self._start(tokens) for tokens in self._tokens(prompts)]
        for number, tokens in enumerate(encoded, start=1):
            if len(tokens) > limit and not truncate:
                raise UserError(
                    f"Text {number} has {len(tokens):,} tokens, but this model's context of "
                    f"{limit + 1:,} must hold it and what comes after; shorten it, or drop its "
                    f"beginning with truncate=True."
                )
        return [tokens[-limit:] for tokens in encoded]

    def read(self, output: Hypothesis, prompt: Sequence[int], config: DecodeConfig) -> Completion:
        """The text of a hypothesis after a prompt, up to the first stop string."""
        tokens, text, stopped = cut_at_stop(self.tokenizer, output.tokens, config.stop, prompt)
        if not stopped:
            return Completion(text, tokens, output.log_probability, output.finished, stopped)
        gained = output.log_probabilities
        if gained is None:
            # A search notices a stop some tokens late: only those up to it count.
            (whole,) = self.likelihoods([[*prompt, *tokens]])
            gained = tuple(whole.log_probabilities[len(whole.log_probabilities) - len(tokens) :])
        log_probability = math.fsum(gained[: len(tokens)])
        return Completion(text, tokens, log_probability, finished=False, stopped=True)

    def _warn_if_full(self, lengths: Sequence[int], config: DecodeConfig) -> None:
        """Say how many texts, with their prompts, were cut off by the context."""
        context = self.model.config.max_length
        n_full = sum(length >= context for length in lengths)
        if n_full:
            texts = "a text ends" if n_full == 1 else f"{n_full} texts end"
            warnings.warn(
                f"{texts} where the model's context of {context:,} tokens is full, before the "
                f"{config.max_length:,} tokens that were asked for",
                stacklevel=4,
            )
