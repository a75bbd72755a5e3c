"""Any model that a person names: a folder of ours, of Hugging Face's, or a GGUF file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

from qkv.config import ModelConfig
from qkv.convert.architecture import Architecture
from qkv.convert.checkpoint import CONFIG, Checkpoint, is_foreign, open_folder
from qkv.convert.describe import describe
from qkv.convert.fit import with_halves
from qkv.convert.halves import Reordered
from qkv.convert.known import ARCHITECTURES, LABELLED
from qkv.convert.vocabularies import read_tokenizers
from qkv.convert.weights import ForeignWeights
from qkv.errors import UserError
from qkv.shelf import find_model
from qkv.tasks import Tokenizers, folder
from qkv.tasks import load as load_source
from qkv.tasks.folder import Source
from qkv.text import Tokenizer

GGUF = ".gguf"


def open_model(name: str | Path | Source) -> Source:
    """A model by its path, or by the name that it was pulled under."""
    if isinstance(name, Source):
        return name
    path = _alone(find_model(name))
    if path.suffix.lower() == GGUF:
        from qkv.convert.gguf import open_gguf

        return open_gguf(path)
    return open_huggingface(path) if is_foreign(path) else folder.open_folder(path)


def _alone(path: Path) -> Path:
    """The GGUF file that is all of a model in a folder, or else the path itself."""
    if not path.is_dir() or (path / CONFIG).exists():
        return path
    files = [file for file in path.glob("*") if file.suffix.lower() == GGUF]
    return files[0] if len(files) == 1 else path


def load(name: str | Path | Source, device: str = "auto") -> Any:
    """Read a model, whoever wrote it, and give the object of its task, ready to use."""
    return load_source(open_model(name), device)


def architecture_of(config: Mapping[str, Any], where: Path) -> Architecture:
    """The architecture that a config.json names."""
    kind = config.get("model_type")
    if kind is None:
        raise UserError(f"{where}/config.json does not say 'model_type'; fetch it again.")
    if str(kind) not in ARCHITECTURES:
        raise UserError(
            f"{where} is of the architecture {kind!r}, which qkv cannot read; it reads "
            f"{', '.join(ARCHITECTURES)}."
        )
    classifier = LABELLED.get(str(kind))
    if classifier and config.get("architectures") == [*classifier.classes.values()]:
        return classifier
    return ARCHITECTURES[str(kind)]


def open_huggingface(path: Path) -> Source:
    """A Hugging Face folder, as ours would say it."""
    checkpoint = open_folder(path)
    architecture = architecture_of(checkpoint.config, path)

    @cache
    def tokenizers() -> Tokenizers:
        if architecture.model_type == "vit":
            raise UserError(f"{path} reads images and has no head of labels; train it to have one.")
        source, target = read_tokenizers(path, architecture.model_type)
        apart = path / "target"  # so export.py, for their folders have room for one
        if (apart / "tokenizer.json").is_file():
            target = read_tokenizers(apart, architecture.model_type)[1]
        return Tokenizers(source, target)

    return as_source(architecture, checkpoint, tokenizers)


def as_source(
    architecture: Architecture, checkpoint: Checkpoint, tokenizers: Callable[[], Tokenizers]
) -> Source:
    """What a checkpoint holds, under our names; its tokenizer may be missing until it is needed."""
    head, content = describe(architecture, checkpoint, _or_none(tokenizers))
    config = ModelConfig.from_dict(content["model"])

    def weights() -> Mapping[str, Tensor]:
        # No architecture of theirs has the paper's own order: we wrote that we changed it.
        in_pairs = config.positions == "sinusoidal"
        in_file = with_halves(config) if in_pairs else config
        found = ForeignWeights(
            architecture,
            in_file,
            head,
            checkpoint.tensors,
            checkpoint.path,
            architecture.left_out(checkpoint.config),
        )
        return Reordered(found, to_halves=False) if in_pairs else found

    return Source(checkpoint.path, content, tokenizers, weights)


def _or_none(tokenizers: Callable[[], Tokenizers]) -> Tokenizer | None:
    try:
        return tokenizers().target
    except UserError:
        return None  # said again where the tokenizer is needed
