"""Beginning from a model that is there already, with its tokenizer, instead of from nothing."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qkv.config import ModelConfig, Recipe
from qkv.convert import open_model
from qkv.convert.model_folder import (
    Prompting,
    StoredModel,
    Tokenizers,
    load_config,
    load_prompting,
    load_tokenizers,
)
from qkv.errors import UserError
from qkv.model import Encoder, Model
from qkv.text import EOS, Tokenizer
from qkv.weights import load_weights

# Weights know nothing of these; all else would silently make another model of them.
MAY_DIFFER = (
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "max_length",
    "rotary_base",
    "rotary_scaling",
    "rotary_factor",
    "rotary_trained_length",
    "rotary_slow",
    "rotary_fast",
    "window",
    "window_layers",
    "pooling",
    "pooler",
)


# What stands on an encoder. One that another task needs begins fresh, and one it lacks is left out.
HEADS = ("head.", "pair_head.", "pooler.")


@dataclass(frozen=True)
class Weights:
    """A model folder's weights to begin from."""

    source: StoredModel
    config: ModelConfig

    def changed(self, recipe: Recipe, **more: Any) -> ModelConfig:
        """The folder's model with what the recipe changes."""
        for name, value in recipe.model.items():
            if name not in MAY_DIFFER and value != getattr(self.config, name):
                raise UserError(
                    f"[model]: {name} follows from {self.source}, which the run begins from; leave "
                    f"it out. What may differ: {', '.join(MAY_DIFFER)}."
                )
        return ModelConfig.from_dict({**self.config.to_dict(), **recipe.model, **more}, "[model]")

    def fill(self, model: Model) -> None:
        """Put the folder's weights into the model; tokens that are new begin as the mean of all."""
        path = self.source.path
        weights = dict(self.source.read_weights())
        before, now = self.config.vocab_size, model.config.vocab_size
        if now > before:
            shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
            for name, tensor in weights.items():
                if name in shapes and len(tensor) == before and shapes[name][0] == now:
                    weights[name] = _grown(tensor, now)
        self._cut_positions(model, weights)
        if isinstance(model, Encoder):
            weights = _with_heads_of(model, weights)
        load_weights(model, weights, path)

    def _cut_positions(self, model: Model, weights: dict[str, Tensor]) -> None:
        """Leave out learnt places that a shorter model has no use for."""
        for name, parameter in model.named_parameters():
            if not name.endswith(".positions.table.weight") or name not in weights:
                continue
            if len(parameter) > len(weights[name]):
                raise UserError(
                    f"[model]: max_length ({len(parameter)}) is over the {len(weights[name])} "
                    f"places that {self.source} has learnt; leave it out or lower it."
                )
            weights[name] = weights[name][: len(parameter)]


@dataclass(frozen=True)
class Start(Weights):
    """A model of text to begin from, with its vocabulary."""

    tokenizers: Tokenizers
    prompting: Prompting

    def model_config(self, recipe: Recipe, tokenizer: Tokenizer) -> ModelConfig:
        """The folder's model with what the recipe changes, and with room for new tokens."""
        # Some of other people's models know more tokens than their tokenizer has.
        more = {"vocab_size": max(self.config.vocab_size, len(tokenizer))}
        if self.config.positions == "disentangled":  # distances keep the buckets they had
            more["relative_length"] = self.config.relative_length or self.config.max_length
        return self.changed(recipe, **more)


def _with_heads_of(model: Encoder, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the body, and those of heads where both models have one of that shape."""
    found = {name: tensor for name, tensor in weights.items() if not name.startswith(HEADS)}
    for name, parameter in model.named_parameters():
        if name.startswith(HEADS):
            before = weights.get(name)
            fits = before is not None and before.shape == parameter.shape
            found[name] = before if before is not None and fits else parameter.detach()
    return found


def _grown(tensor: Tensor, size: int) -> Tensor:
    mean = tensor.float().mean(dim=0, keepdim=True).to(tensor.dtype)
    return torch.cat([tensor, mean.expand(size - len(tensor), *tensor.shape[1:])])


def _with_end(config: ModelConfig, tokenizer: Tokenizer) -> ModelConfig:
    """Texts that never end are taught to: by the tokenizer's own end or, lacking one, a new one."""
    if config.eos_id < config.vocab_size:
        return config
    if "end" not in tokenizer.names:
        tokenizer.add_special([EOS])
    end = tokenizer.eos_id
    begin = config.bos_id if config.bos_id < config.vocab_size else end
    return dataclasses.replace(config, eos_id=end, bos_id=begin, pad_id=end)


def body_of(source: StoredModel, config: ModelConfig) -> StoredModel:
    """A decoder without its output, as an encoder that sees backwards only."""
    body = dataclasses.replace(
        config,
        family="encoder",
        causal=True,
        n_encoder_layers=config.n_decoder_layers,
        pooling="last",
        tie="none",
    )

    def weights() -> dict[str, Tensor]:
        return {
            name.replace("decoder.", "encoder.", 1): tensor
            for name, tensor in source.read_weights().items()
            if not name.startswith("output.")
        }

    content = {**source.content, "model": body.to_dict()}
    return dataclasses.replace(source, content=content, read_weights=weights)


def find_start(recipe: Recipe, family: str) -> Start | None:
    """The folder that the recipe begins from, where it names one."""
    if not recipe.train.start_from:
        return None
    folder = open_model(recipe.train.start_from)
    _, config, _ = load_config(folder)
    if (recipe.task, config.family) == ("classify", "decoder"):
        folder = body_of(folder, config)
        _, config, _ = load_config(folder)
    if config.family != family:
        raise UserError(
            f"train.start_from: {folder} holds a model of family {config.family!r}, but task = "
            f"'{recipe.task}' needs {family!r}."
        )
    if config.patch_size:
        raise UserError(
            f"train.start_from: {folder} holds a model of images, but task = '{recipe.task}' reads "
            f"text; begin from an encoder of text."
        )
    tokenizers = load_tokenizers(folder, config)
    config = _with_end(config, tokenizers.target)
    return Start(folder, config, tokenizers, load_prompting(folder))
