"""From a recipe to what training needs: tokenizers, encoded pairs, a model config."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qkv.config import PRESETS, ModelConfig, Recipe
from qkv.data import (
    EncodedPairs,
    Pair,
    ParallelText,
    Ragged,
    filter_pairs,
    read_parallel,
)
from qkv.errors import UserError
from qkv.tasks import Tokenizers
from qkv.text import train_pair

BY_TOKENIZER = ("vocab_size", "source_vocab_size", "pad_id", "bos_id", "eos_id")


@dataclass(frozen=True)
class Prepared:
    """Everything that is decided before the first step."""

    text: ParallelText
    tokenizers: Tokenizers
    train: EncodedPairs
    valid: EncodedPairs
    model: ModelConfig
    remarks: tuple[str, ...]  # what was dropped and why


def prepare(recipe: Recipe, tokenizers: Tokenizers | None = None) -> Prepared:
    """Read, tokenise and filter; given `tokenizers` are used as they are (a resumed run's)."""
    text = read_parallel(recipe.data, recipe.train.seed)
    tokenizers = tokenizers or train_tokenizers(text.train, recipe)
    model = model_config(recipe, tokenizers)
    _check_lengths(recipe, model)
    limits = recipe.data.max_length, recipe.data.max_ratio
    train, train_report = filter_pairs(encode(text.train, tokenizers), *limits)
    valid, valid_report = filter_pairs(encode(text.valid, tokenizers), *limits)
    remarks = (f"train: {train_report.describe()}", f"valid: {valid_report.describe()}")
    return Prepared(text, tokenizers, train, valid, model, remarks)


def train_tokenizers(pairs: list[Pair], recipe: Recipe) -> Tokenizers:
    """Learn the vocabularies from the training text alone."""
    sources, targets = (source for source, _ in pairs), (target for _, target in pairs)
    return Tokenizers(*train_pair(sources, targets, recipe.tokenizer))


def encode(pairs: list[Pair], tokenizers: Tokenizers) -> EncodedPairs:
    """Token ids of both sides, without BOS and EOS."""
    return EncodedPairs(
        Ragged.of(tokenizers.source.encode_many([source for source, _ in pairs])),
        Ragged.of(tokenizers.target.encode_many([target for _, target in pairs])),
    )


def model_config(recipe: Recipe, tokenizers: Tokenizers) -> ModelConfig:
    """The preset, what the recipe changes in it, and what the tokenizers decide."""
    for name in BY_TOKENIZER:
        if name in recipe.model:
            raise UserError(f"[model]: {name} follows from the tokenizer; set it in [tokenizer].")
    if recipe.model.get("family", "encoder-decoder") != "encoder-decoder":
        raise UserError("[model]: translation needs family = 'encoder-decoder'; leave it out.")
    target = tokenizers.target
    values = {
        **PRESETS[recipe.preset], **recipe.model,
        "vocab_size": len(target),
        "pad_id": target.pad_id, "bos_id": target.bos_id, "eos_id": target.eos_id,
    }  # fmt: skip
    if not tokenizers.shared:
        values["source_vocab_size"] = len(tokenizers.source)
        values.setdefault("tie", "output")
    return ModelConfig.from_dict(values, "[model]")


def _check_lengths(recipe: Recipe, model: ModelConfig) -> None:
    if recipe.data.max_length > model.max_length:
        raise UserError(
            f"data.max_length ({recipe.data.max_length}) is over model.max_length "
            f"({model.max_length}); raise the one or lower the other."
        )


def fixed_tokenizers(folder: Path) -> Tokenizers | None:
    """A resumed run's tokenizers, where it got that far; they stand beside its checkpoints."""
    try:
        return Tokenizers.load(folder)
    except UserError:
        return None
