"""GGUF files, as llama.cpp writes them: one file, often quantised, in words of its own.

Such a file is translated into the words of a Hugging Face checkpoint, and read as one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from qkv.convert.architectures import ARCHITECTURES
from qkv.convert.gguf.container import GgufFile, StoredTensor
from qkv.convert.gguf.gguf_architectures import (
    ANGLES,
    GGUF_ARCHITECTURES,
    Change,
    hugging_face_names,
)
from qkv.convert.gguf.gguf_tokenizer import adds_bos, read_tokenizer
from qkv.convert.huggingface.foreign_checkpoint import ForeignCheckpoint
from qkv.convert.huggingface.foreign_weights import Shape
from qkv.convert.huggingface.importing import as_stored_model
from qkv.convert.model_folder import StoredModel, Tokenizers
from qkv.errors import UserError
from qkv.model.quantized_matrix import QuantizedMatrix


class _Tensors:
    """A file's tensors by Hugging Face's names and in its layout, each read when asked for."""

    def __init__(self, file: GgufFile, model_type: str, change: Change) -> None:
        self._change = change
        names = hugging_face_names(file.kind, model_type)
        self._found = {
            name: part
            for tensor in file.tensors.values()
            if tensor.name not in ANGLES
            for name, part in _named_parts(tensor, names)
        }
        self.shapes: Mapping[str, Shape] = {
            name: tuple(change(name, torch.empty(tensor.shape, device="meta")).shape)
            for name, tensor in self._found.items()
        }

        self.quantized = frozenset(
            name for name, tensor in self._found.items() if tensor.is_quantized
        )

    def __getitem__(self, name: str) -> Tensor:
        return self._change(name, self._found[name].read())

    def matrix(self, name: str) -> QuantizedMatrix:
        """Read a quantised matrix (out, in); a change may reorder its rows."""
        matrix = self._found[name].matrix()
        return matrix[self._change(name, torch.arange(matrix.shape[0]))]


def open_gguf(path: Path) -> StoredModel:
    """A GGUF file, as a model folder of ours would say it."""
    file = GgufFile(path)
    try:
        _check(file)
        config, change = GGUF_ARCHITECTURES[file.kind](file)
        tensors = _Tensors(file, config["model_type"], change)
    except (ArithmeticError, AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(
            f"{path} has a value of the wrong kind or size ({error}); fetch it again."
        ) from error
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    checkpoint = ForeignCheckpoint(
        path,
        config,
        tensors,
        tokenizer={"add_bos_token": adds_bos(file.get)},
        chat=file.get("tokenizer.chat_template"),
    )

    @cache
    def tokenizers() -> Tokenizers:
        found = read_tokenizer(file.get, path)
        return Tokenizers(found, found)

    return as_stored_model(ARCHITECTURES[config["model_type"]], checkpoint, tokenizers)


def _check(file: GgufFile) -> None:
    parts = file.get("split.count", 1)
    if parts > 1:
        raise UserError(
            f"{file.path} is one of {parts} parts of a model; join them first, with llama.cpp's "
            f"`llama-gguf-split --merge`."
        )
    if file.kind not in GGUF_ARCHITECTURES:
        raise UserError(
            f"{file.path} is a GGUF file of the architecture {file.kind!r}, but only "
            f"{', '.join(GGUF_ARCHITECTURES)} can be read."
        )


def _named_parts(
    tensor: StoredTensor, table: Mapping[str, str]
) -> Iterator[tuple[str, StoredTensor]]:
    """A tensor by its name there, or the matrices of experts that it stacks."""
    if len(tensor.shape) < 3:
        yield _their_name(tensor.name, table), tensor
        return
    for expert in range(tensor.shape[0]):
        part = replace(tensor, shape=tensor.shape[1:], data=tensor.data[expert])
        yield _their_name(tensor.name, table, expert), part


def _their_name(name: str, table: Mapping[str, str], expert: int = 0) -> str:
    """A tensor's name there; one that has none stays as it is, and is then unexpected."""
    found = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    if found is None or found[2] not in table:
        return name
    return f"{table[found[2]].format(found[1], expert)}.{found[3]}"
