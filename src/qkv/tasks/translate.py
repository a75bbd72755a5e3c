"""Translation: text in, text out, in the order it came in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qkv.config import DecodeConfig
from qkv.config.fields import from_mapping
from qkv.convert.model_folder import Tokenizers, Where, load_config, load_family, load_tokenizers
from qkv.decode import Graphs, Hypothesis, generate
from qkv.decode.generate import suppressed
from qkv.device import place
from qkv.errors import UserError
from qkv.model import EncoderDecoder

if TYPE_CHECKING:
    from qkv.inspect import Trace

BATCH_TOKENS = {"cpu": 2048, "cuda": 16_384}  # source tokens, padding included, times beams


@dataclass(frozen=True)
class Translation:
    """One translation of a source, with its scores."""

    text: str
    score: float  # log-probability over length^penalty: what the search ranks by
    log_probability: float


class Translator:
    """An encoder-decoder with its vocabularies."""

    def __init__(self, model: EncoderDecoder, tokenizers: Tokenizers, decode: DecodeConfig) -> None:
        self.model, self.tokenizers, self.decode = model, tokenizers, decode
        self.graphs = Graphs()

    @classmethod
    def load(cls, folder: Where, device: torch.device | None = None) -> Translator:
        """Read a model folder."""
        _, config, decode = load_config(folder)
        model = place(load_family(folder, config, EncoderDecoder), device)
        return cls(model, load_tokenizers(folder, config), decode)

    def translate(self, texts: str | Sequence[str], **settings: Any) -> Any:
        """Translate one text, or many in one go; `settings` are those of `DecodeConfig`.

        A blank text gives an empty one, in its place.
        """
        if isinstance(texts, str):
            return self.translate([texts], **settings)[0]
        return [found[0].text if found else "" for found in self.n_best(texts, **settings)]

    def n_best(
        self,
        texts: str | Sequence[str],
        *,
        prefix: str = "",
        truncate: bool = False,
        progress: Callable[[int], None] | None = None,
        **settings: Any,
    ) -> list[list[Translation]]:
        """The best translations of each text with their scores; blank texts have none.

        `prefix` is how each translation must begin. `progress` is told how many texts are done.
        """
        texts = [texts] if isinstance(texts, str) else texts
        config = self.settings(settings)
        start = self._begin(config) + (self.tokenizers.target.encode(prefix) if prefix else [])
        sources = self.encode(texts, truncate)
        found: list[list[Translation]] = [[] for _ in texts]
        rows_each = config.n_best if config.sample else config.beams
        for rows in self._batches(sources, rows_each):
            for row, hypotheses in zip(
                rows, self._search([sources[row] for row in rows], rows, config, start), strict=True
            ):
                found[row] = [self._read(hypothesis) for hypothesis in hypotheses]
            if progress:
                progress(len(rows))
        return found

    def trace(
        self,
        source: str | Sequence[str],
        target: str | Sequence[str] | None = None,
        **settings: Any,
    ) -> Trace:
        """Look into the pass that translates a text, by default into what the model gives."""
        from qkv.inspect.tracing import trace_translation

        return trace_translation(self, source, target, settings)

    def output_tokens(self, texts: Sequence[str], **settings: Any) -> list[list[int]]:
        """The best output of each text as the model gave it, EOS included where it ended so."""
        config, sources = self.settings(settings), self.encode(texts)
        found = self._search(sources, list(range(len(texts))), config, self._begin(config))
        ends = [[self.model.config.eos_id] if each[0].finished else [] for each in found]
        return [[*each[0].tokens, *end] for each, end in zip(found, ends, strict=True)]

    def settings(self, differences: Mapping[str, Any]) -> DecodeConfig:
        """How to decode: as the model's folder says, with what differs."""
        given = dataclasses.asdict(self.decode) | dict(differences)
        return from_mapping(DecodeConfig, given, "decode")

    def encode(self, texts: Sequence[str], truncate: bool = False) -> list[list[int]]:
        """Token ids without EOS; blank texts are empty. Texts over the limit are cut or refused."""
        limit = self.model.config.max_length - 1 - len(self.first)  # EOS takes a place
        for number, text in enumerate(texts, start=1):
            if any("\ud800" <= character <= "\udfff" for character in text):
                raise UserError(f"Line {number} holds bytes that are not UTF-8; convert it first.")
        encoded = self.tokenizers.source.encode_many([text.strip() for text in texts])
        for number, tokens in enumerate(encoded, start=1):
            if len(tokens) > limit and not truncate:
                raise UserError(
                    f"Line {number} has {len(tokens)} tokens, but this model reads at most "
                    f"{limit}; split it into sentences, or cut it off with --truncate."
                )
        return [[*self.first, *tokens[:limit]] if tokens else [] for tokens in encoded]

    @property
    def first(self) -> list[int]:
        """What stands before each text, on both sides."""
        first = self.model.config.start_id
        return [] if first < 0 else [first]

    def _begin(self, config: DecodeConfig) -> list[int]:
        return self.first if config.force_start else []

    def _batches(self, sources: Sequence[Sequence[int]], rows_each: int) -> Iterator[list[int]]:
        """Rows to translate together: of similar length, within the budget, blank ones left out."""
        rows = [row for row, tokens in enumerate(sources) if tokens]
        rows.sort(key=lambda row: len(sources[row]), reverse=True)
        budget = BATCH_TOKENS[self._device.type] // rows_each
        while rows:
            count = max(1, budget // (len(sources[rows[0]]) + 1))
            yield rows[:count]
            del rows[:count]

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _search(
        self,
        sources: Sequence[Sequence[int]],
        rows: list[int],
        config: DecodeConfig,
        prefix: Sequence[int],
    ) -> list[list[Hypothesis]]:
        tokens, lengths = self._pad(sources)
        return generate(
            self.model,
            tokens,
            lengths,
            config,
            prefix=prefix,
            ids=rows,
            suppress=suppressed(config, self.model.config),
            graphs=self.graphs,
        )

    def _pad(self, sources: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        config = self.model.config
        lengths = torch.tensor([len(source) + 1 for source in sources])
        tokens = torch.full((len(sources), int(lengths.max())), config.pad_id)
        for row, source in enumerate(sources):
            tokens[row, : len(source) + 1] = torch.tensor([*source, config.eos_id])
        return tokens.to(self._device), lengths.to(self._device)

    def _read(self, hypothesis: Hypothesis) -> Translation:
        text = self.tokenizers.target.decode(hypothesis.tokens)
        return Translation(text, hypothesis.score, hypothesis.log_probability)
