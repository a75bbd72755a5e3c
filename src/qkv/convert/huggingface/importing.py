"""A Hugging Face folder as a stored model: its config, weights and tokenizers in our words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

from qkv.config import ModelConfig
from qkv.convert.architectures import ARCHITECTURES, CAUSAL_CLASSIFIERS
from qkv.convert.architectures.architecture import Architecture
from qkv.convert.architectures.unsupported import why_unsupported
from qkv.convert.huggingface.content import chat_content, read_content
from qkv.convert.huggingface.fitting import with_halves
from qkv.convert.huggingface.foreign_checkpoint import ForeignCheckpoint, read_checkpoint
from qkv.convert.huggingface.foreign_weights import ForeignWeights
from qkv.convert.huggingface.wave_order import Reordered
from qkv.convert.model_folder import StoredModel, Tokenizers
from qkv.convert.tokenizers.tokenizer_files import read_tokenizers
from qkv.errors import UserError
from qkv.text import Tokenizer


def architecture_of(config: Mapping[str, Any], folder: Path) -> Architecture:
    """The architecture that a config.json names."""
    kind = config.get("model_type")
    if kind is None:
        raise UserError(f"{folder}/config.json does not say 'model_type'; fetch it again.")
    if str(kind) not in ARCHITECTURES:
        raise UserError(
            f"{folder} is of the architecture {kind!r}, which qkv cannot read"
            f"{why_unsupported(str(kind), ARCHITECTURES)}"
        )
    classifier = CAUSAL_CLASSIFIERS.get(str(kind))
    if classifier and config.get("architectures") == [*classifier.classes.values()]:
        return classifier
    return ARCHITECTURES[str(kind)]


def open_huggingface(
    folder: Path, config: Mapping[str, Any], weights: list[Path] | None = None
) -> StoredModel:
    """Open a Hugging Face folder whose config.json has been read.

    `weights` are safetensors files to read instead of the folder's own.
    """
    checkpoint = read_checkpoint(folder, config, weights)
    architecture = architecture_of(checkpoint.config, folder)

    @cache
    def tokenizers() -> Tokenizers:
        if architecture.model_type == "vit":
            raise UserError(
                f"{folder} reads images and has no head of labels; train it to have one."
            )
        source, target = read_tokenizers(folder, architecture.model_type)
        target_folder = folder / "target"  # as exported, for their folders have room for one
        if (target_folder / "tokenizer.json").is_file():
            target = read_tokenizers(target_folder, architecture.model_type)[1]
        return Tokenizers(source, target)

    return as_stored_model(architecture, checkpoint, tokenizers)


def as_stored_model(
    architecture: Architecture,
    checkpoint: ForeignCheckpoint,
    tokenizers: Callable[[], Tokenizers],
) -> StoredModel:
    """A foreign checkpoint under our names; its tokenizer may be missing until it is needed."""
    tokenizer = _target_or_none(tokenizers)
    head, content = read_content(architecture, checkpoint, tokenizer)
    config = ModelConfig.from_dict(content["model"])

    def weights() -> Mapping[str, Tensor]:
        # None of their architectures has the paper's own order: a config that asks for it was
        # written by our export, which reordered the weights.
        in_pairs = config.positions == "sinusoidal"
        in_file = with_halves(config) if in_pairs else config
        foreign = ForeignWeights(
            architecture,
            in_file,
            head,
            checkpoint.tensors,
            checkpoint.path,
            _zeros(architecture, checkpoint),
        )
        return Reordered(foreign, to_halves=False) if in_pairs else foreign

    read_chat = None
    if tokenizer and checkpoint.chat and config.family == "decoder" and "chat" not in content:
        read_chat = cache(lambda: chat_content(checkpoint, tokenizer, content["bos"]))
    return StoredModel(
        checkpoint.path,
        content,
        tokenizers,
        weights,
        read_chat,
        model_type=architecture.model_type,
    )


def _zeros(architecture: Architecture, checkpoint: ForeignCheckpoint) -> str:
    """A pattern of biases that are not in the file, and zeros."""
    pattern = architecture.left_out(checkpoint.config)
    lacks_bias = checkpoint.sentences is not None and not checkpoint.sentences.dense_bias
    return rf"{pattern}|linear\.bias" if lacks_bias else pattern


def _target_or_none(tokenizers: Callable[[], Tokenizers]) -> Tokenizer | None:
    try:
        return tokenizers().target
    except UserError:
        return None  # raised again where the tokenizer is needed
