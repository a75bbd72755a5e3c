"""The packaged corpus and translator, which several labs use."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import Tensor

import qkv
from qkv.config import ModelConfig, TokenizerConfig, load_recipe, recipe_to_dict
from qkv.hub import home
from qkv.model import Layout
from qkv.tasks import Translator
from qkv.text import Tokenizer, train_tokenizer
from qkv_labs.tools import IGNORE, lengths, padded

Pair = tuple[str, str]


def translator(tell: Callable[[str], None], *changes: str) -> Translator:
    """Load the packaged translator, or one with changes as `--set` takes them.

    It is trained at its first use.
    """
    recipe = load_recipe(Path(qkv.__file__).parent / "recipes" / "demo.toml", list(changes))
    key = repr(sorted(recipe_to_dict(recipe).items()))
    folder = home() / "labs" / hashlib.sha256(key.encode()).hexdigest()[:16]
    if not (folder / "model.safetensors").exists() or not (folder / "README.md").exists():
        tell("training the packaged translator (once)")
        qkv.train(recipe, folder, replace=True, console=Console(quiet=True))
    return Translator.load(folder, "cpu")


@dataclass(frozen=True, eq=False)
class Translations:
    """A padded batch of pairs for teacher forcing."""

    source: Tensor  # x₁ … x_n, EOS
    layout: Layout  # of the sources
    target: Tensor  # BOS, y₁ … y_m
    labels: Tensor  # y₁ … y_m, EOS; IGNORE after it


@dataclass(frozen=True, eq=False)
class EncodedPairs:
    """Pairs of sentences as token ids without special tokens."""

    sources: list[list[int]]
    targets: list[list[int]]

    @classmethod
    def of(cls, pairs: Sequence[Pair], source: Tokenizer, target: Tokenizer) -> EncodedPairs:
        """Encode both sides of some pairs."""
        return cls(
            source.encode_many([text for text, _ in pairs]),
            target.encode_many([text for _, text in pairs]),
        )

    def __len__(self) -> int:
        return len(self.sources)

    def batch(self, indices: Iterable[int], config: ModelConfig) -> Translations:
        """Lay some pairs in rows, with the special tokens of a model."""
        chosen = list(indices)
        sources = [[*self.sources[index], config.eos_id] for index in chosen]
        targets = [self.targets[index] for index in chosen]
        return Translations(
            padded(sources, config.pad_id),
            lengths(sources),
            padded([[config.bos_id, *target] for target in targets], config.pad_id),
            padded([[*target, config.eos_id] for target in targets], IGNORE),
        )


def tokenizer_of(pairs: Sequence[Pair], vocab_size: int) -> Tokenizer:
    """Train one tokenizer for both sides of some pairs."""
    lines = [line for pair in pairs for line in pair]
    return train_tokenizer(lines, TokenizerConfig(vocab_size=vocab_size))


def special_ids(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the model settings that name a tokenizer's special tokens."""
    return {
        "vocab_size": len(tokenizer),
        "pad_id": tokenizer.pad_id,
        "bos_id": tokenizer.bos_id,
        "eos_id": tokenizer.eos_id,
    }
