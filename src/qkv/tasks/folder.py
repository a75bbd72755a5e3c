"""The model folder: config.json, model.safetensors, tokenizer.json and a small README.md."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from qkv.config import DecodeConfig, ModelConfig
from qkv.config.fields import from_mapping
from qkv.device import has_bfloat16
from qkv.errors import UserError
from qkv.files import write_json
from qkv.model import Decoder, Encoder, EncoderDecoder, Model, empty_model
from qkv.text import Tokenizer
from qkv.text.chat import ChatTemplate
from qkv.weights import StoredTensors, fill_empty, write_tensors

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
M = TypeVar("M", EncoderDecoder, Encoder, Decoder)
T = TypeVar("T")
TOKENIZER, SOURCE_TOKENIZER = "tokenizer.json", "source_tokenizer.json"


@dataclass(frozen=True)
class Tokenizers:
    """The vocabularies of source and target; one object where they are shared."""

    source: Tokenizer
    target: Tokenizer

    @property
    def shared(self) -> bool:
        """Whether both sides have one vocabulary."""
        return self.source is self.target

    def save(self, folder: Path) -> None:
        """Write tokenizer.json, and source_tokenizer.json where the source has its own."""
        self.target.save(folder / TOKENIZER)
        if self.shared:
            for name in (SOURCE_TOKENIZER, "source_special_tokens_map.json"):
                (folder / name).unlink(missing_ok=True)  # of a model that was here before
        else:
            self.source.save(folder / SOURCE_TOKENIZER)

    @classmethod
    def load(cls, folder: Path) -> Tokenizers:
        """Read what `save` wrote."""
        target = Tokenizer.load(folder / TOKENIZER)
        apart = folder / SOURCE_TOKENIZER
        return cls(Tokenizer.load(apart) if apart.exists() else target, target)


@dataclass(frozen=True)
class Source:
    """A model on disk, whoever wrote it: what it is in our words, its vocabularies and weights."""

    path: Path  # named where something is wrong with it
    content: Mapping[str, Any]  # what our config.json would say
    read_tokenizers: Callable[[], Tokenizers]
    read_weights: Callable[[], Mapping[str, Tensor]]  # by our names

    def __str__(self) -> str:
        return str(self.path)


Where = Path | Source
"""A model folder of ours, or what was found in somebody else's."""


def open_folder(folder: Path) -> Source:
    """A model folder of ours."""
    return Source(
        folder,
        _read_json(folder / CONFIG),
        lambda: Tokenizers.load(folder),
        lambda: StoredTensors(folder / WEIGHTS),
    )


def _source(where: Where) -> Source:
    return open_folder(where) if isinstance(where, Path) else where


@dataclass(frozen=True)
class Prompting:
    """How a language model is spoken to, as it was in training."""

    bos: bool = True  # a text begins with BOS
    chat: ChatTemplate | None = None  # where it was taught to answer
    chat_bos: bool | None = None  # a conversation begins with BOS; None: as a text does

    @property
    def talk_bos(self) -> bool:
        """Whether a conversation begins with BOS."""
        return self.bos if self.chat_bos is None else self.chat_bos


def save_config(
    folder: Path,
    task: str,
    model: ModelConfig,
    decode: DecodeConfig | None = None,
    prompting: Prompting | None = None,
    **sections: Any,
) -> None:
    """Write what the model is, how it is decoded or spoken to, and what else its task knows."""
    content: dict[str, Any] = {"task": task, "model": model.to_dict()}
    if decode:
        content["decode"] = dataclasses.asdict(decode)
    if prompting:
        content["bos"] = prompting.bos
        content["chat"] = prompting.chat.to_dict() if prompting.chat else None
        if prompting.chat_bos is not None:
            content["chat_bos"] = prompting.chat_bos
    write_json(folder / CONFIG, content | sections)


def load_section(folder: Where, name: str, cls: type[T]) -> T:
    """Read one of the sections that `save_config` was given, as the dataclass `cls`."""
    source = _source(folder)
    section, path = source.content.get(name, {}), source.path / CONFIG
    if not isinstance(section, dict):
        raise UserError(f"{path}: {name!r} must be an object; restore the file.")
    return from_mapping(cls, section, f"{path}: {name}")


def load_prompting(folder: Where) -> Prompting:
    """Read how a language model is spoken to."""
    source = _source(folder)
    content, path = source.content, source.path / CONFIG
    bos, chat, chat_bos = content.get("bos", True), content.get("chat"), content.get("chat_bos")
    if not (isinstance(bos, bool) and isinstance(chat_bos, bool | None)):
        raise UserError(f"{path}: 'bos' and 'chat_bos' must be true or false; restore the file.")
    if not isinstance(chat, dict | None):
        raise UserError(f"{path}: 'chat' must be a template or null; restore the file.")
    template = ChatTemplate.from_dict(chat, f"{path}: chat") if chat else None
    return Prompting(bos, template, chat_bos)


def save_weights(folder: Path, model: Model) -> None:
    """Write model.safetensors, each shared matrix once."""
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    write_tensors(folder / WEIGHTS, weights, {"format": "pt"})


def load_config(folder: Where) -> tuple[str, ModelConfig, DecodeConfig]:
    """Read the task, the model and its decoding from a model folder."""
    source = _source(folder)
    content, path = source.content, source.path / CONFIG
    for name, kind in (("task", str), ("model", dict)):
        if not isinstance(content.get(name), kind):
            raise UserError(f"{path} is not a qkv model's config: it has no {name!r}.")
    model = ModelConfig.from_dict(content["model"], str(path))
    decode = load_section(source, "decode", DecodeConfig)
    return content["task"], model, decode


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        hint = "train one with `qkv train` or `qkv demo`, or check the path"
        raise UserError(f"{path.parent} is not a model folder (no {path.name}); {hint}.") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{path} is truncated or not JSON ({error}); restore it.") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a qkv model's config: it is no JSON object.")
    return content


def load_model(folder: Where, config: ModelConfig) -> Model:
    """Build the model around its weights, naming each tensor that does not fit."""
    source = _source(folder)
    weights, where = source.read_weights(), source.path / WEIGHTS
    model = empty_model(config)
    fill_empty(model, weights, where)
    return model.eval()


def load_tokenizers(folder: Where, config: ModelConfig) -> Tokenizers:
    """Read the vocabularies and check that the model knows all of their tokens."""
    tokenizers = _source(folder).read_tokenizers()
    for tokenizer, size in (
        (tokenizers.source, config.source_vocab_size or config.vocab_size),
        (tokenizers.target, config.vocab_size),
    ):
        if len(tokenizer) > size:
            raise UserError(
                f"{folder}: the tokenizer has {len(tokenizer):,} tokens, but the model knows only "
                f"{size:,}; take both from the same run."
            )
    return tokenizers


def load_family(folder: Where, config: ModelConfig, family: type[M]) -> M:
    """As `load_model`, for a task that needs a certain family."""
    model = load_model(folder, config)
    if not isinstance(model, family):
        needed = "encoder-decoder" if family is EncoderDecoder else family.__name__.lower()
        raise UserError(f"{folder} holds a model of family {config.family!r}, not {needed}.")
    return model


def lay_by_columns(model: M) -> M:
    """Lay matrices that widen in memory as one token at a time is best multiplied on a CPU.

    A CPU reads them almost twice as fast then; with four rows or more it is some percent slower.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.out_features > module.in_features:
            module.weight.data = module.weight.data.t().contiguous().t()
    return model


def place(model: M, device: torch.device | None) -> M:
    """Move a model to where it will run; a GPU that has bfloat16 holds the weights in it."""
    if device is None or device.type != "cuda":
        return model
    return model.to(device, torch.bfloat16 if has_bfloat16(device) else torch.float32)
