"""Translation: text in, text out, in the order it came in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, overload

import torch

from qkv.config import DecodeConfig
from qkv.convert.model_folder import (
    StoredModel,
    Tokenizers,
    load_config,
    load_family,
    load_languages,
    load_tokenizers,
    model_content,
    save_model_folder,
)
from qkv.decode import Engine, Handle, Request
from qkv.decode.closed_batch import join, run
from qkv.decode.request import suppressed, token_limits
from qkv.errors import UserError
from qkv.model import EncoderDecoder
from qkv.model.packed_linear import pack_products
from qkv.tasks.task_object import TaskObject
from qkv.tasks.texts import DecodeSettings, Progress, decode_config, listed_texts
from qkv.text.languages import Languages

if TYPE_CHECKING:
    from qkv.inspect import Trace


class RequestSettings(DecodeSettings, total=False):
    """Settings of a decoding, and of what is translated how."""

    prefix: str  # how each translation must begin
    source_language: str  # of a model that knows several: "de", "de_DE" and "deu_Latn" are one
    target_language: str
    truncate: bool  # cut texts that are too long instead of refusing them
    first: int  # index of the first text, where these go on from others: it decides random draws


class TranslateSettings(RequestSettings, total=False):
    """Keywords of `Translator.translate`."""

    progress: Progress | None  # called with the number of texts done since the last call


@dataclass(frozen=True)
class Translation:
    """A translation of a text, with its scores."""

    text: str
    score: float  # log-probability over length^penalty: what the search ranks by
    log_probability: float


@dataclass(frozen=True)
class Framing:
    """The special tokens around a source, and those that a translation begins with."""

    before: tuple[int, ...]
    after: tuple[int, ...]  # EOS, and in some models a language
    start: int  # what the decoder reads first
    given: tuple[int, ...]  # what every translation begins with


class Translator(TaskObject):
    """An encoder-decoder with its vocabularies and, where it knows several, its languages."""

    def __init__(
        self,
        model: EncoderDecoder,
        tokenizers: Tokenizers,
        decode: DecodeConfig,
        languages: Languages | None = None,
    ) -> None:
        self.model, self.tokenizers, self.decode = model, tokenizers, decode
        self.languages = languages
        self.engine = Engine(model)

    @classmethod
    def _of(cls, folder: StoredModel, device: torch.device) -> Translator:
        _, config, decode = load_config(folder)
        model = load_family(folder, config, EncoderDecoder, device)
        if device.type == "cpu":
            model = pack_products(model)
        return cls(model, load_tokenizers(folder, config), decode, load_languages(folder))

    def save(self, folder: str | Path, task: str = "translate") -> None:
        """Write a model folder."""
        content = model_content(task, self.model.config, self.decode)
        if self.languages:
            content["languages"] = self.languages.to_dict()
        save_model_folder(folder, content, self.model, self.tokenizers)

    @overload
    def translate(  # type: ignore[overload-overlap]  # a str is an iterable of strings too
        self, texts: str, **settings: Unpack[TranslateSettings]
    ) -> str: ...
    @overload
    def translate(
        self, texts: Iterable[str], **settings: Unpack[TranslateSettings]
    ) -> list[str]: ...
    def translate(
        self, texts: str | Iterable[str], **settings: Unpack[TranslateSettings]
    ) -> str | list[str]:
        """Translate a text, or each of many; a blank text gives an empty one.

        `settings` are those of `DecodeConfig` and `TranslateSettings`.
        """
        if isinstance(texts, str):
            return self.translate([texts], **settings)[0]
        found = self.n_best(texts, **settings)
        return [translations[0].text if translations else "" for translations in found]

    def n_best(
        self,
        texts: str | Iterable[str],
        *,
        progress: Progress | None = None,
        **settings: Unpack[RequestSettings],
    ) -> list[list[Translation]]:
        """The best translations of each text with their scores; a blank text has none.

        `settings` are those of `DecodeConfig` and `RequestSettings`.
        """
        requests = self.requests(texts, **settings)
        asked = [request for request in requests if request]
        found = iter(run(self.engine, asked, progress))
        return [self.read(next(found)) if request else [] for request in requests]

    def requests(
        self,
        texts: str | Iterable[str],
        *,
        prefix: str = "",
        source_language: str = "",
        target_language: str = "",
        truncate: bool = False,
        first: int = 0,
        **settings: Unpack[DecodeSettings],
    ) -> list[Request | None]:
        """The engine's requests for the translations of `n_best`; a blank text has none."""
        model, config = self.model.config, self.settings(settings)
        framing = self.framing(config, source_language, target_language)
        if not isinstance(prefix, str):
            raise UserError(f"The prefix of translations is {prefix!r}, but must be one text.")
        begun = self.tokenizers.target.encode(prefix) if prefix else []
        texts = [texts] if isinstance(texts, str) else texts
        encoded = self.encode(texts, truncate, source_language)
        rows = [row for row, tokens in enumerate(encoded) if tokens]
        sources = [(*encoded[row], *framing.after) for row in rows]
        n_before = len(framing.given) + len(begun)
        limits = token_limits(model, config, list(map(len, sources)), n_before) if rows else []
        prompt = (framing.start, *framing.given, *begun)
        suppress, n_given = suppressed(config, model), len(framing.given)
        requests: list[Request | None] = [None] * len(encoded)
        for row, source, limit in zip(rows, sources, limits, strict=True):
            requests[row] = Request(
                prompt, limit, model.ends, config, source, suppress, first + row, n_given=n_given
            )
        return requests

    def read(self, handles: Sequence[Handle]) -> list[Translation]:
        """The translations that a request, or all its draws, has come to, best first."""
        prefix, decode = handles[0].request.prompt[1:], self.tokenizers.target.decode
        return [
            Translation(decode([*prefix, *best.tokens]), best.score, best.log_probability)
            for best in join(handles)
        ]

    def trace(
        self,
        source: str | Sequence[str],
        target: str | Sequence[str] | None = None,
        *,
        source_language: str = "",
        target_language: str = "",
        **settings: Unpack[DecodeSettings],
    ) -> Trace:
        """Trace the pass that translates a text, by default into what the model gives."""
        from qkv.inspect.trace.from_task import trace_translation

        languages = source_language, target_language
        return trace_translation(self, source, target, {**settings}, languages)

    def output_tokens(
        self,
        texts: Sequence[str],
        languages: tuple[str, str] = ("", ""),
        **settings: Unpack[DecodeSettings],
    ) -> list[list[int]]:
        """The best output of each text as the model gave it, with EOS where it ended so."""
        source, target = languages
        asked = self.requests(texts, source_language=source, target_language=target, **settings)
        found = iter(run(self.engine, [request for request in asked if request]))
        end = [self.model.config.eos_id]
        outputs: list[list[int]] = []
        for request in asked:
            best = join(next(found))[0] if request else None
            given = [*request.prompt[1:], *best.tokens] if request and best else []
            outputs.append([*given, *end] if not best or best.finished else given)
        return outputs

    def settings(self, differences: Mapping[str, object]) -> DecodeConfig:
        """The model's own settings of decoding, with what differs."""
        return decode_config(self.decode, differences)

    def encode(
        self, texts: Iterable[str], truncate: bool = False, language: str = ""
    ) -> list[list[int]]:
        """Token ids without EOS; blank texts are empty. Texts over the limit are cut or refused."""
        texts = listed_texts(texts)
        before, after = self._around_source(language)
        limit = self.model.config.max_length - len(before) - len(after)
        encoded = self.tokenizers.source.encode_many(texts)
        for number, tokens in enumerate(encoded, start=1):
            if len(tokens) > limit and not truncate:
                raise UserError(
                    f"Text {number} has {len(tokens)} tokens, but this model reads at most "
                    f"{limit}; split it into sentences, or cut it off with truncate=True."
                )
        return [
            [*before, *tokens[:limit]] if text.strip() and tokens else []
            for text, tokens in zip(texts, encoded, strict=True)
        ]

    def framing(
        self, config: DecodeConfig, source_language: str = "", target_language: str = ""
    ) -> Framing:
        """The special tokens of a translation between two languages, or by default the usual."""
        model, languages = self.model.config, self.languages
        around = self._around_source(source_language)
        if languages is None:
            if target_language:
                raise UserError(_one_pair("target", "--to", target_language))
            return Framing(*around, model.bos_id, tuple(self.first if config.force_start else ()))
        target = languages.find(target_language or languages.target, "target")
        if languages.starts_target:
            return Framing(*around, target, ())
        return Framing(*around, model.bos_id, (target,))

    def _around_source(self, language: str = "") -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The special tokens before and after a source."""
        languages, end = self.languages, (self.model.config.eos_id,)
        if languages is None:
            if language:
                raise UserError(_one_pair("source", "--from", language))
            return tuple(self.first), end
        own = (languages.find(language or languages.source, "source"),)
        return ((), end + own) if languages.after_source else (own, end)

    @property
    def first(self) -> list[int]:
        """The tokens that come before each text, on both sides."""
        first = self.model.config.start_id
        return [] if first < 0 else [first]


def _one_pair(role: str, option: str, language: str) -> str:
    return (
        f"This model translates one language into another and has no tokens of languages, but the "
        f"{role}'s is named as {language!r}; leave {role}_language ({option}) out."
    )
