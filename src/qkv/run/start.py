"""Starting from a model that exists, with its tokenizer, instead of from random weights."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.config import ModelConfig, Recipe
from qkv.convert import open_model
from qkv.convert.model_folder import (
    Prompting,
    StoredModel,
    Tokenizers,
    as_causal_encoder,
    load_config,
    load_prompting,
    load_tokenizers,
)
from qkv.errors import UserError
from qkv.model import Encoder, LabelHead, Model
from qkv.text import EOS, Tokenizer
from qkv.weights import LazyWeights, load_weights

# Weights do not depend on these; any other setting would silently make another model of them.
MAY_DIFFER = (
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "max_length",
    "rotary_base",
    "rotary_window_base",
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
HEADS = ("head.", "pair_head.", "pooler.", "vector.")


@dataclass(frozen=True)
class Start:
    """A model to start from: its files, config and vocabularies (none if it reads images)."""

    source: StoredModel
    task: str
    config: ModelConfig
    tokenizers: Tokenizers | None
    prompting: Prompting
    name: str = ""  # by which it can be found again

    def model_config(
        self, recipe: Recipe, tokenizers: Tokenizers | None, head: dict[str, Any]
    ) -> ModelConfig:
        """Describe the model with what the recipe changes, and with room for new tokens."""
        for name, value in recipe.model.items():
            if name not in MAY_DIFFER and value != getattr(self.config, name):
                raise UserError(
                    f"[model]: {name} follows from {self.source}, which the run starts from; leave "
                    f"it out. What may differ: {', '.join(MAY_DIFFER)}."
                )
        values = {**self.config.to_dict(), **recipe.model, **head}
        if tokenizers:  # some models know more tokens than their tokenizer has
            values["vocab_size"] = max(self.config.vocab_size, len(tokenizers.target))
        if values["head"] != "none":
            values["d_vector"] = 0  # a text's vector is not what is trained
        if self.config.positions == "disentangled":  # distances keep the buckets they had
            values["relative_length"] = self.config.relative_length or self.config.max_length
        return ModelConfig.from_dict(values, "[model]")

    def fill(self, model: Model, keep_head: bool) -> None:
        """Copy the weights into a model; new tokens start as the mean of all embeddings.

        Labels of another meaning start with fresh weights, even where there are just as many.
        """
        stored = self.source.read_weights()
        before, now = self.config.vocab_size, model.config.vocab_size
        shapes = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
        as_it_is = isinstance(stored, LazyWeights) and stored.shapes == shapes
        if as_it_is and not isinstance(model, Encoder):
            load_weights(model, stored, self.source.path)  # one at a time
            return
        weights = dict(stored)
        for name, tensor in weights.items() if now > before else ():
            if name in shapes and len(tensor) == before and shapes[name][0] == now:
                weights[name] = _grown(tensor, now)
        self._cut_positions(model, weights)
        if not isinstance(model, Encoder):
            load_weights(model, weights, self.source.path)
            return
        fresh = copy.deepcopy(model.head.state_dict())
        load_weights(model, _with_heads_of(model, weights), self.source.path)
        same_head = keep_head and self.config.head == model.config.head
        if isinstance(model.head, LabelHead) and not same_head:
            model.head.load_state_dict(fresh)

    def _cut_positions(self, model: Model, weights: dict[str, Tensor]) -> None:
        """Drop learned positions beyond a shorter model's length."""
        for name, parameter in model.named_parameters():
            if not name.endswith(".positions.table.weight") or name not in weights:
                continue
            if len(parameter) > len(weights[name]):
                raise UserError(
                    f"[model]: max_length ({len(parameter)}) is over the {len(weights[name])} "
                    f"positions that {self.source} has learned; leave it out or lower it."
                )
            weights[name] = weights[name][: len(parameter)]


def open_start(recipe: Recipe, family: str) -> Start | None:
    """Open the model that a recipe starts from, where it names one."""
    name = recipe.train.start_from
    if not name:
        return None
    # Training needs more than 8 bits, unless the weights are frozen.
    lora = recipe.train.lora_rank > 0
    dtype = {"auto": None}.get(recipe.train.lora_base, recipe.train.lora_base) if lora else "fp32"
    source = open_model(name, dtype)
    known = str(Path(name).resolve()) if Path(name).exists() else name
    task, config, _ = load_config(source)
    if (recipe.task, config.family) == ("classify", "decoder"):
        source = as_causal_encoder(source)
        _, config, _ = load_config(source)
    if config.family != family:
        raise UserError(
            f"train.start_from: {source} holds a model of family {config.family!r}, but task = "
            f"'{recipe.task}' needs {family!r}; start from one of those, or choose another task."
        )
    if "languages" in source.content:
        raise UserError(
            f"train.start_from: {source} is told languages by tokens, which training does not "
            f"write; start from a translator of one pair of languages."
        )
    if config.patch_size:
        if recipe.task != "classify":
            raise UserError(
                f"train.start_from: {source} reads images, but task = '{recipe.task}' reads text; "
                f"start from an encoder of text."
            )
        return Start(source, task, config, None, Prompting(), known)
    tokenizers = load_tokenizers(source, config)
    config = _with_end(config, tokenizers.target)
    return Start(source, task, config, tokenizers, load_prompting(source), known)


def _with_heads_of(model: Encoder, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Keep the heads that both models have in one shape; others are the model's own."""
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith(HEADS)}
    for name, parameter in model.named_parameters():
        if name.startswith(HEADS):
            before = weights.get(name)
            fits = before is not None and before.shape == parameter.shape
            kept[name] = before if before is not None and fits else parameter.detach()
    return kept


def _grown(tensor: Tensor, size: int) -> Tensor:
    mean = tensor.float().mean(dim=0, keepdim=True).to(tensor.dtype)
    return torch.cat([tensor, mean.expand(size - len(tensor), *tensor.shape[1:])])


def _with_end(config: ModelConfig, tokenizer: Tokenizer) -> ModelConfig:
    """Give a model without EOS the tokenizer's own or, where it has none, a new one."""
    if config.eos_id < config.vocab_size:
        return config
    if "end" not in tokenizer.names:
        tokenizer.add_special([EOS])
    end = tokenizer.eos_id
    begin = config.bos_id if config.bos_id < config.vocab_size else end
    return dataclasses.replace(config, eos_id=end, bos_id=begin, pad_id=end)
