"""LoRA adapters in PEFT's layout: adapter_config.json and adapter_model.safetensors.

An adapter holds updates for some matrices of a base model, under the names that these have in
Hugging Face's architecture, and the weights of a head where one was trained. Where no architecture
of theirs computes what the base does, its matrices go by our names.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.config import ModelConfig
from qkv.convert.adapted_weights import AdaptedWeights, Adapter
from qkv.convert.architectures.name_tables import AS_IS, TRANSPOSED, Form, Part
from qkv.convert.huggingface.fitting import fitting
from qkv.convert.huggingface.foreign_weights import applicable
from qkv.convert.model_folder import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    BASE_SAVED_AS,
    CONFIG,
    SAVED_AS,
    StoredModel,
    Tokenizers,
    as_causal_encoder,
    check_same_save,
    check_whole,
    load_config,
    read_config,
)
from qkv.errors import UserError
from qkv.files import read_values
from qkv.model import Model, empty_model, parameter_shapes
from qkv.model.families import AdaptedFrom
from qkv.model.lora import Update, adaptable, lora_layers
from qkv.weights import read_tensors

PREFIX = "base_model.model."
A, B = ".lora_A.weight", ".lora_B.weight"
LARGEST = 1e30  # of ranks and scales; whole numbers in JSON may be too large for a float
HEADS = ("head.", "pooler.")  # what is trained beside the updates where a head gives labels
TASK_TYPES = {
    "translate": "SEQ_2_SEQ_LM",
    "denoise": "SEQ_2_SEQ_LM",
    "generate": "CAUSAL_LM",
    "classify": "SEQ_CLS",
    "tag": "TOKEN_CLS",
    "answer": "QUESTION_ANS",
}
SIZES = ("family", "d_model", "n_heads", "kv_heads", "d_ff", "n_encoder_layers", "n_decoder_layers")
"""What an adapter of ours and its base have in common."""
# Settings that change what is computed in ways that ours does not know, and their usual values
USUAL = {
    "peft_type": "LORA",
    "use_dora": False,
    "bias": "none",
    "layer_replication": None,
    "use_qalora": False,
    "lora_bias": False,
}


@dataclass(frozen=True)
class Matrix:
    """One of the matrices that a layer of ours holds: its name in files, and its rows."""

    name: str
    n_rows: int
    form: Form

    @property
    def rows(self) -> Form:
        """How B's rows lie in files: as the matrix has its outputs, whichever way it lies."""
        return AS_IS if self.form is TRANSPOSED else self.form


@dataclass(frozen=True)
class Names:
    """What files call a model's matrices, and the weights of its head."""

    layers: dict[str, list[Matrix]]  # by our layers' names
    heads: dict[str, Part]  # by our weights' names
    prefix: str = ""  # of the body's names, which the body alone lacks
    is_body: bool = False

    def in_file(self, name: str) -> str:
        """A matrix's name as files of this very model have it."""
        return PREFIX + (name.removeprefix(self.prefix) if self.is_body else name)

    def canonical(self, name: str) -> str:
        """A name that is the same whether the body stands alone or not."""
        name = name.removeprefix(PREFIX).replace(".modules_to_save.default.", ".")
        return re.sub(r"\.(lora_[AB])\.default\.", r".\1.", name).removeprefix(self.prefix)


def names_of(config: ModelConfig, task: str, model_type: str = "") -> Names:
    """Find what an architecture of Hugging Face's calls a model's matrices; else they have ours."""
    layers, shapes = adaptable(empty_model(config)), parameter_shapes(config)
    heads = has_labels(config)
    try:
        architecture, in_file, head = fitting(config, task, model_type)
    except UserError:
        in_file = None
    if in_file is None or in_file.positions != config.positions:
        # Another library cannot read such a base, or has its vectors in another order.
        own = {name: [Matrix(name, layers[name].out_features, AS_IS)] for name in layers}
        return Names(own, {name: Part(name) for name in shapes if heads and is_head(name)})
    rules, _ = applicable(architecture, in_file, head)
    matrices: dict[str, list[Matrix]] = {}
    for rule in rules:
        layer = rule.ours.removesuffix(".weight")
        if layer in layers:
            rows = rule.rows or (layers[layer].out_features,)
            matrices[layer] = [
                Matrix(part.name.removesuffix(".weight"), n_rows, part.form)
                for part, n_rows in zip(rule.parts, rows, strict=True)
            ]
    named = {rule.ours: rule.parts[0] for rule in rules if heads and is_head(rule.ours)}
    return Names(matrices, named, architecture.prefix, head == "none")


def is_head(name: str) -> bool:
    """Whether a weight belongs to a head of labels, or to the layer before it."""
    return name.startswith(HEADS)


def has_labels(config: ModelConfig) -> bool:
    """Whether a model has a head that gives labels."""
    return config.head in ("sequence", "token")


# Reading


def read_adapter(folder: Path, config: ModelConfig, task: str, source: AdaptedFrom) -> Adapter:
    """Read an adapter for a model, naming each tensor that the model has no place for."""
    values, names = _read_config(folder), names_of(config, task, source.model_type)
    check_whole(folder / ADAPTER_WEIGHTS)
    tensors = read_tensors(folder / ADAPTER_WEIGHTS)
    given = {names.canonical(name): tensor for name, tensor in tensors.items()}
    updates: dict[str, list[Update]] = {}
    for layer, matrices in names.layers.items():
        found = [_update(names.canonical(m.name), m, given, values, folder) for m in matrices]
        if any(len(update.a) for update in found):
            n_in = max(update.a.shape[1] for update in found)
            updates[layer] = [x if len(x.a) else _no_update(len(x.b), n_in) for x in found]
    heads = {}
    for ours, part in names.heads.items():
        tensor = given.pop(names.canonical(part.name), None)
        if tensor is not None:
            heads[ours] = part.form.read(tensor)
    if given:
        unknown = sorted(given)
        raise UserError(
            f"{folder / ADAPTER_WEIGHTS} does not fit {source.base}, which has no matrix that can "
            f"be updated for {', '.join(unknown[:3])}{' …' if unknown[3:] else ''}; name the model "
            f"that it was trained for."
        )
    _check_shapes(folder, config, updates, heads)
    return Adapter(source, updates, heads)


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / ADAPTER_CONFIG
    values = read_values(path)
    for name, usual in USUAL.items():
        if values.get(name, usual) not in (usual, None):
            raise UserError(
                f"{path}: {name} is {values[name]!r}, but only {usual!r} can be read; merge the "
                f"adapter into its model with peft, and take that."
            )
    for name in ("r", "lora_alpha"):
        value = values.get(name)
        if not isinstance(value, int | float) or not 0 < value < LARGEST:
            raise UserError(f"{path}: {name} must be a number over 0; fetch the file again.")
    return values


def _update(
    name: str, matrix: Matrix, given: dict[str, Tensor], values: Mapping[str, Any], folder: Path
) -> Update:
    """Take the A and B of a matrix out of those that are given."""
    a, b = given.pop(name + A, None), given.pop(name + B, None)
    if a is None and b is None:
        return _no_update(matrix.n_rows, 0)
    if a is None or b is None or a.dim() != 2 or b.dim() != 2 or a.shape[0] != b.shape[1]:
        raise UserError(
            f"{folder / ADAPTER_WEIGHTS}: the matrices A and B of {name} do not belong together; "
            f"fetch the file again."
        )
    alpha = _of_pattern(values.get("alpha_pattern"), name, values["lora_alpha"])
    if not isinstance(alpha, int | float) or not 0 < alpha < LARGEST:
        raise UserError(
            f"{folder / ADAPTER_CONFIG}: alpha_pattern gives {name} {alpha!r}, but must give a "
            f"number over 0; fetch the file again."
        )
    rank = a.shape[0]
    return Update(a, matrix.rows.read(b), alpha / (rank**0.5 if values.get("use_rslora") else rank))


def _no_update(n_out: int, n_in: int) -> Update:
    return Update(torch.empty(0, n_in), torch.empty(n_out, 0))


def _of_pattern(patterns: Any, name: str, usual: float) -> Any:
    """A value that PEFT's config gives to some matrices by the ends of their names."""
    for pattern, value in patterns.items() if isinstance(patterns, dict) else ():
        ends = pattern.removeprefix("^")
        if name == ends or name.endswith(f".{ends}") or ends.endswith(f".{name}"):
            return value
    return usual


def _check_shapes(
    folder: Path,
    config: ModelConfig,
    updates: Mapping[str, list[Update]],
    heads: Mapping[str, Tensor],
) -> None:
    shapes = parameter_shapes(config)
    found: dict[str, tuple[int, ...]] = {
        f"{name}.weight": (sum(len(x.b) for x in update), update[0].a.shape[1])
        for name, update in updates.items()
    }
    found |= {name: tuple(tensor.shape) for name, tensor in heads.items()}
    for name, shape in found.items():
        if shape != shapes[name]:
            raise UserError(
                f"{folder / ADAPTER_WEIGHTS} does not fit its model: {name} would be "
                f"{list(shape)} but is {list(shapes[name])}; name the model that it was trained "
                f"for."
            )


def with_adapter(stored: StoredModel, folder: Path, name: str = "") -> StoredModel:
    """A model with an adapter: its own content and tokenizer where the folder has them.

    `name` is what people call the base.
    """
    if not (folder / ADAPTER_CONFIG).is_file():
        raise UserError(f"{folder} is no adapter: it has no {ADAPTER_CONFIG}; check the path.")
    saved_as = str(stored.content.get(SAVED_AS, ""))
    content = read_config(folder) if (folder / CONFIG).is_file() else {}
    _warn_of_other_base(folder, stored, name, str(content.pop(BASE_SAVED_AS, "")))
    if "task" in content:  # one that was trained here
        check_same_save(folder, ADAPTER_WEIGHTS, content)
        if (content.get("model") or {}).get("causal") and not stored.content["model"]["causal"]:
            stored = as_causal_encoder(stored)
        tokenizers = cache(lambda: Tokenizers.load(folder))
        adapted = dataclasses.replace(
            stored,
            content=content,
            read_tokenizers=tokenizers,
            read_chat=None,
            adapter=folder,
        )
        _check_sizes(folder, load_config(adapted)[1], load_config(stored)[1], name)
        stored = adapted
    task, config, _ = load_config(stored)
    base = str(Path(name).resolve()) if Path(name).exists() else name
    source = AdaptedFrom(base, stored.model_type, saved_as)
    adapter = read_adapter(folder, config, task, source)
    read_base = stored.read_weights

    def weights() -> Mapping[str, Tensor]:
        return AdaptedWeights(read_base(), adapter, parameter_shapes(config))

    return dataclasses.replace(stored, read_weights=weights)


def _check_sizes(folder: Path, own: ModelConfig, base: ModelConfig, name: str) -> None:
    """Refuse an adapter whose own config is of a model of other sizes than the base."""
    for size in SIZES:
        if getattr(own, size) != getattr(base, size):
            raise UserError(
                f"{folder} is an adapter for a model whose {size} is {getattr(own, size)!r}, but "
                f"in {name} it is {getattr(base, size)!r}; name the model that it was trained for."
            )


def _warn_of_other_base(folder: Path, stored: StoredModel, name: str, trained_on: str) -> None:
    """Warn where an adapter was trained on another model than the one that it is put on.

    Digests of their saves decide, where both are known (`trained_on` is the adapter's); else names,
    of which the last part counts, so that folders may be moved.
    """
    named, own = _named_base(folder), str(stored.content.get(SAVED_AS, ""))
    if not named:
        return
    if not trained_on and own and (Path(named) / CONFIG).is_file():
        trained_on = str(read_config(Path(named)).get(SAVED_AS, ""))
    is_same = trained_on == own if trained_on and own else _same_name(named, name, stored.path)
    if not is_same:
        warnings.warn(
            f"{folder} was trained on {named}, but is put on {name}; unless the two have the same "
            f"weights, what it gives is worth little: name the model that it was trained on.",
            stacklevel=2,
        )


def _same_name(named: str, name: str, path: Path) -> bool:
    """Whether two names of models, of which one is opened from a path, may be of the same model."""
    if Path(named).exists() and path.exists() and Path(named).samefile(path):
        return True
    return bool(_last_parts(named) & (_last_parts(name) | _last_parts(path)))


def _last_parts(name: str | Path) -> set[str]:
    """What a model is called: the last part of a path or a name, and in a hub's cache its own."""
    parts = [part.lower() for part in Path(name).parts]
    cached = [part.rpartition("--")[2] for part in parts if "--" in part]
    return {*parts[-1:], *cached[-1:]}


def _named_base(folder: Path) -> str:
    """The name of an adapter's base in its config; empty where it has none."""
    name = read_values(folder / ADAPTER_CONFIG).get("base_model_name_or_path")
    return name if isinstance(name, str) else ""


def base_of(folder: Path) -> str:
    """The name of the model that an adapter is for, as its config has it."""
    name = _named_base(folder)
    if not name:
        raise UserError(
            f"{folder / ADAPTER_CONFIG} does not name the adapter's base model; give that as the "
            f"model, and {folder} as its adapter."
        )
    return name


# Writing


def adapter_tensors(model: Model, task: str) -> dict[str, Tensor]:
    """The content of adapter_model.safetensors: A and B of each matrix, and the head."""
    names = _names(model, task)
    tensors: dict[str, Tensor] = {}
    for layer, lora in lora_layers(model).items():
        for matrix, update in zip(names.layers[layer], lora.updates(), strict=True):
            if len(update.a):
                name = names.in_file(matrix.name)
                tensors[name + A] = update.a
                tensors[name + B] = matrix.rows.write(update.b)
    weights = dict(model.named_parameters())
    for ours, part in names.heads.items():
        tensors[names.in_file(part.name)] = part.form.write(weights[ours])
    return tensors


def adapter_values(model: Model, task: str) -> dict[str, Any]:
    """The content of adapter_config.json."""
    names, layers = _names(model, task), lora_layers(model)
    assert model.adapted_from is not None
    updated = [
        (names.in_file(matrix.name).removeprefix(PREFIX), update)
        for layer, lora in layers.items()
        for matrix, update in zip(names.layers[layer], lora.updates(), strict=True)
        if len(update.a)
    ]
    ranks = {name: len(update.a) for name, update in updated}
    alphas = {name: update.scale * len(update.a) for name, update in updated}
    (rank, _), (alpha, _) = (Counter(x.values()).most_common(1)[0] for x in (ranks, alphas))
    transposed = any(m.form is TRANSPOSED for layer in layers for m in names.layers[layer])
    heads = {part.name.removeprefix(names.prefix).split(".")[0] for part in names.heads.values()}
    return {
        "peft_type": "LORA",
        "task_type": TASK_TYPES.get(task, "FEATURE_EXTRACTION"),
        "base_model_name_or_path": model.adapted_from.base,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": next(iter(layers.values())).dropout,
        "target_modules": sorted(ranks),
        "rank_pattern": {name: value for name, value in ranks.items() if value != rank},
        "alpha_pattern": {name: value for name, value in alphas.items() if value != alpha},
        "modules_to_save": sorted(heads) or None,
        "fan_in_fan_out": transposed,
        "bias": "none",
        "inference_mode": True,
    }


def _names(model: Model, task: str) -> Names:
    source = model.adapted_from
    assert source is not None
    return names_of(model.config, task, source.model_type)


def restore(model: Model, folder: Path, task: str) -> None:
    """Copy the updates and the head of a saved adapter into the model that it was saved from."""
    assert model.adapted_from is not None
    adapter = read_adapter(folder, model.config, task, model.adapted_from)
    layers, weights = lora_layers(model), dict(model.named_parameters())
    with torch.no_grad():
        for name, updates in adapter.updates.items():
            layers[name].load(updates)
        for name, tensor in adapter.heads.items():
            weights[name].copy_(tensor)
