"""Language models: text goes on from a prompt, is scored, chosen among, or answers in a chat."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from qkv.config import DecodeConfig
from qkv.config.fields import from_mapping
from qkv.convert.model_folder import (
    Prompting,
    Where,
    load_config,
    load_family,
    load_prompting,
    load_tokenizers,
)
from qkv.decode import Hypothesis, Remembered
from qkv.device import lay_by_columns, place
from qkv.errors import UserError
from qkv.model import Decoder
from qkv.tasks.conversation import Conversation, Tell
from qkv.tasks.few_shot import Choice, Normalize
from qkv.tasks.likelihood import Likelihood, choices, likelihoods
from qkv.tasks.writer import Writer
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


class LanguageModel:
    """A decoder with its vocabulary."""

    def __init__(
        self,
        model: Decoder,
        tokenizer: Tokenizer,
        decode: DecodeConfig,
        prompting: Prompting | None = None,
    ) -> None:
        self.model, self.tokenizer, self.decode = model, tokenizer, decode
        self.prompting = prompting or Prompting()
        self.writer = Writer(model, tokenizer)

    @classmethod
    def load(cls, folder: Where, device: torch.device | None = None) -> LanguageModel:
        """Read a model folder."""
        _, config, decode = load_config(folder)
        model = load_family(folder, config, Decoder)
        on_gpu = device is not None and device.type == "cuda"
        model = place(model, device) if on_gpu else lay_by_columns(model)
        tokenizer = load_tokenizers(folder, config).target
        return cls(model, tokenizer, decode, load_prompting(folder))

    def generate(self, prompts: str | Sequence[str] = "", **settings: Any) -> Any:
        """What comes after one prompt, or after each of many, in one go.

        `settings` are those of `DecodeConfig`, and what `n_best` takes. A text that outgrows the
        context goes on from its newer half.
        """
        if isinstance(prompts, str):
            return self.generate([prompts], **settings)[0]
        return [found[0].text for found in self.n_best(prompts, **settings)]

    def n_best(
        self,
        prompts: str | Sequence[str],
        *,
        draft: LanguageModel | None = None,
        truncate: bool = False,
        progress: Callable[[int], None] | None = None,
        **settings: Any,
    ) -> list[list[Completion]]:
        """As `generate`, with `n_best` completions of each prompt and what is known of them.

        A smaller `draft` of the same vocabulary makes a greedy search faster, never different.
        `truncate` forgets the beginning of a prompt that is too long for the context.
        """
        prompts = [prompts] if isinstance(prompts, str) else prompts
        config = self.settings(settings)
        encoded = self._encode(prompts, truncate)
        found: list[list[Completion]] = [[] for _ in prompts]
        for rows in self.writer.batches(encoded, config):
            batch = [encoded[row] for row in rows]
            helper = draft.model if draft else None
            hypotheses = self.writer.search_on(batch, rows, config, helper)
            for row, each in zip(rows, hypotheses, strict=True):
                found[row] = [self._read(one, encoded[row], config) for one in each]
            if progress:
                progress(len(rows))
        return found

    def answers(self, conversations: Sequence[Messages], **settings: Any) -> list[str]:
        """Answer the last message of each of many conversations, in one go.

        One that is too long for the context gets no answer.
        """
        template = self._template(None)
        ends = template.ends(self.tokenizer)
        over = sorted(ends.ids | {*self.model.config.ends})
        config = self.settings(settings)
        config = dataclasses.replace(config, stop=(*config.stop, *filter(None, [ends.text])))
        prompts = [
            template.prompt(messages, self.tokenizer, self.prompting.talk_bos)
            for messages in conversations
        ]
        fitting = [
            row for row, one in enumerate(prompts) if len(one) < self.model.config.max_length
        ]
        found = [""] * len(prompts)
        for some in self.writer.batches([prompts[row] for row in fitting], config):
            rows = [fitting[row] for row in some]
            batch = [prompts[row] for row in rows]
            hypotheses = self.writer.search(batch, rows, config, over)
            for row, each in zip(rows, hypotheses, strict=True):
                found[row] = self._read(each[0], [], config).text
        return found

    def stream(
        self,
        prompt: str = "",
        *,
        truncate: bool = False,
        remembered: Remembered | None = None,
        **settings: Any,
    ) -> Iterator[str]:
        """The text of `generate`, piece by piece as it comes; no piece ends within a character."""
        config = self.settings(settings)
        if config.beams > 1 and not config.sample:
            raise UserError(
                "decode: beam search has no text before its end; stream with beams = 1."
            )
        if config.n_best > 1:
            raise UserError("decode: a stream is one text; stream with n_best = 1.")
        tokens = self._encode([prompt], truncate)[0]
        yield from self.flow(tokens, config, after=tokens, remembered=remembered)

    def flow(
        self,
        prompt: list[int],
        config: DecodeConfig,
        *,
        after: Sequence[int] = (),
        ends: Sequence[int] = (),
        remembered: Remembered | None = None,
        id: int = 0,
    ) -> Iterator[str]:
        """Text after a prompt of tokens; it is spelt as it stands `after` these tokens."""
        text = TextStream(self.tokenizer, config.stop, after)
        for token in self.writer.stream(prompt, config, ends, remembered, id):
            if piece := text.push([token]):
                yield piece
            if text.stopped:
                return
        if piece := text.finish():
            yield piece

    def chat(self, messages: str | Messages, **settings: Any) -> str:
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
        **settings: Any,
    ) -> Conversation:
        """A chat that goes on turn by turn, each reading only what is new.

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
                "This model was never taught to answer (it has no chat template); train it with "
                "task = 'instruct', or name a template, such as 'plain'."
            )
        return template

    def score(self, texts: str | Sequence[str]) -> Any:
        """How likely one text, or each of many, is to the model."""
        if isinstance(texts, str):
            return self.score([texts])[0]
        return self.likelihoods([self._start(tokens) for tokens in self._tokens(texts)])

    def likelihoods(self, sequences: Sequence[list[int]]) -> list[Likelihood]:
        """The same of tokens, each from its first one on."""
        return likelihoods(self.model, sequences, self.tokenizer)

    def choose(
        self,
        prompts: Sequence[str],
        options: Sequence[Sequence[str]],
        normalize: Normalize = "none",
    ) -> list[Choice]:
        """Which of its options each prompt most likely goes on with."""
        return choices(self, prompts, options, normalize)

    def trace(
        self, source: str | Sequence[str], target: str | Sequence[str] | None = None
    ) -> Trace:
        """Look into the pass that reads a text; a `target` goes on from it and is what counts."""
        from qkv.inspect.tracing import trace_language

        return trace_language(self, source, target)

    def encode(self, text: str) -> list[int]:
        """A text's tokens as the model reads them, with BOS where it knows it."""
        return self._start(self._tokens([text])[0])

    def settings(self, differences: Mapping[str, Any]) -> DecodeConfig:
        """How to decode: as the model's folder says, with what differs."""
        given = dict(differences)
        if given.get("beams") not in (None, 1):
            given.setdefault("sample", False)  # whoever names beams wants a search
        if isinstance(given.get("stop"), str):
            given["stop"] = (given["stop"],)
        return from_mapping(DecodeConfig, dataclasses.asdict(self.decode) | given, "decode")

    def _tokens(self, texts: Sequence[str]) -> list[list[int]]:
        for number, text in enumerate(texts, start=1):
            if any("\ud800" <= character <= "\udfff" for character in text):
                raise UserError(f"Text {number} holds bytes that are not UTF-8; convert it first.")
        return self.tokenizer.encode_many(list(texts))

    def _start(self, tokens: list[int]) -> list[int]:
        """Put BOS first, where the model knows it; a text needs some token to begin after."""
        if self.prompting.bos:
            return [self.model.config.bos_id, *tokens]
        special = self.model.config
        known = (id for id in (special.eos_id, special.bos_id, 0) if id < special.vocab_size)
        return tokens or [next(known)]

    def _encode(self, prompts: Sequence[str], truncate: bool) -> list[list[int]]:
        limit = self.model.config.max_length - 1
        encoded = [self._start(tokens) for tokens in self._tokens(prompts)]
        for number, tokens in enumerate(encoded, start=1):
            if len(tokens) > limit and not truncate:
                raise UserError(
                    f"Prompt {number} has {len(tokens):,} tokens, but this model's context of "
                    f"{limit + 1:,} must hold it and what comes after; shorten it, or let its "
                    f"beginning go with --truncate."
                )
        return [tokens[-limit:] for tokens in encoded]

    def _read(self, one: Hypothesis, prompt: list[int], config: DecodeConfig) -> Completion:
        tokens, text, stopped = cut_at_stop(self.tokenizer, one.tokens, config.stop, prompt)
        if not stopped:
            return Completion(text, tokens, one.log_probability, one.finished, stopped)
        # A search notices a stop some tokens late: only those up to it count.
        (whole,) = self.likelihoods([[*prompt, *tokens]])
        gained = sum(whole.log_probabilities[len(whole.log_probabilities) - len(tokens) :])
        return Completion(text, tokens, gained, finished=False, stopped=True)
