"""LoRA in training: a frozen model in few bits, and fresh updates beside its matrices."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from qkv.config import ModelConfig, Recipe, TrainConfig
from qkv.convert.adapter import Matrix, has_labels, is_head, names_of
from qkv.convert.model_folder import SAVED_AS, load_model
from qkv.errors import UserError
from qkv.model import Model, build_model, parameter_shapes
from qkv.model.families import AdaptedFrom
from qkv.model.lora import Update, adaptable, attach
from qkv.model.quantized import QuantizedLinear
from qkv.run.start import Start

MATRICES = {
    "query_key_value": ("query", "key", "value"),
    "key_value": ("key", "value"),
    "query": ("query",),
    "output": ("output",),
}
"""What the matrices are called that a layer of attention holds."""


def lora_model(
    start: Start, config: ModelConfig, recipe: Recipe, device: torch.device, keep_head: bool
) -> Model:
    """Load the model to start from, frozen, with updates of the recipe's rank and a head."""
    if config.vocab_size != start.config.vocab_size:
        raise UserError(
            f"train.lora_rank: the run needs {config.vocab_size - start.config.vocab_size} tokens "
            f"that {start.source} does not know, and their embeddings would stay untrained; choose "
            f"a chat template without them, or set lora_rank = 0."
        )
    model = _frozen(start, config, device, keep_head)
    names = names_of(config, recipe.task, start.source.model_type)
    updates = {}
    for layer, module in adaptable(model).items():
        matrices = names.layers.get(layer, [])
        chosen = _chosen(layer, matrices, recipe.train)
        if any(chosen):
            updates[layer] = [
                Update.fresh(matrix.n_rows, module.in_features, rank, recipe.train.lora_alpha)
                for matrix, rank in zip(matrices, chosen, strict=True)
            ]
    saved_as = start.source.content.get(SAVED_AS, "")
    source = AdaptedFrom(start.name, start.source.model_type, saved_as)
    attach(model, updates, source, recipe.train.lora_dropout)
    if has_labels(config):
        _train_head(model, device)
    for part in model.modules():
        if isinstance(part, QuantizedLinear):
            part.keep_plain()
    return model


def _frozen(start: Start, config: ModelConfig, device: torch.device, keep_head: bool) -> Model:
    """Load the weights onto the device, with a fresh head where there is one to learn."""
    stored, shapes = start.source, parameter_shapes(config)
    if config.family == "encoder" or shapes != parameter_shapes(start.config):
        filled = build_model(config)
        start.fill(filled, keep_head)
        weights = {name: weight.detach() for name, weight in filled.named_parameters()}
        stored = dataclasses.replace(stored, read_weights=lambda: weights)
    return load_model(stored, config, device)


def _chosen(layer: str, matrices: Sequence[Matrix], train: TrainConfig) -> list[int]:
    """The rank of the update of each matrix that a layer holds; 0 where it has none."""
    asked, kind = set(train.lora_on), layer.rpartition(".")[2]
    if "attention" not in layer:
        return [train.lora_rank * ("feed_forward" in asked)] * len(matrices)
    parts = MATRICES.get(kind, (kind,))
    wanted = ["attention" in asked or part in asked for part in parts]
    if len(parts) > len(matrices):
        if len(set(wanted)) > 1:
            raise UserError(
                f"train.lora_on: in this model, {', '.join(parts)} are one matrix, so that an "
                f"update is for all of them or none; use 'attention'."
            )
        wanted = wanted[: len(matrices)]
    return [train.lora_rank * is_wanted for is_wanted in wanted]


def _train_head(model: Model, device: torch.device) -> None:
    """Train the head of labels too, in float32."""
    floats = next(model.parameters()).dtype
    if floats != torch.float32 and device.type == "cpu":
        raise UserError(
            "train.lora_base: beside a head of labels, frozen weights on a CPU are 'fp32', 'int8' "
            "or 'int4'; choose one of these."
        )
    for name, weight in model.named_parameters():
        if is_head(name):
            weight.data = weight.data.float()
            weight.requires_grad_(True)
