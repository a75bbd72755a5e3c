"""The model folder: config.json, model.safetensors, tokenizer.json and a small README.md."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.config import DecodeConfig, ModelConfig
from qkv.config.fields import from_mapping
from qkv.errors import UserError
from qkv.files import write_json
from qkv.model import EncoderDecoder, Model, build_model
from qkv.text import Tokenizer
from qkv.weights import load_weights, read_tensors, write_tensors

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
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
            (folder / SOURCE_TOKENIZER).unlink(missing_ok=True)  # of a model that was here before
        else:
            self.source.save(folder / SOURCE_TOKENIZER)

    @classmethod
    def load(cls, folder: Path) -> Tokenizers:
        """Read what `save` wrote."""
        target = Tokenizer.load(folder / TOKENIZER)
        apart = folder / SOURCE_TOKENIZER
        return cls(Tokenizer.load(apart) if apart.exists() else target, target)


def save_config(folder: Path, task: str, model: ModelConfig, decode: DecodeConfig) -> None:
    """Write what the model is and how it is best decoded."""
    content = {"task": task, "model": model.to_dict(), "decode": dataclasses.asdict(decode)}
    write_json(folder / CONFIG, content)


def save_weights(folder: Path, model: Model) -> None:
    """Write model.safetensors, each shared matrix once."""
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    write_tensors(folder / WEIGHTS, weights, {"format": "pt"})


def load_config(folder: Path) -> tuple[str, ModelConfig, DecodeConfig]:
    """Read the task, the model and its decoding from a model folder."""
    path = folder / CONFIG
    content = _read_json(path)
    for name, kind in (("task", str), ("model", dict)):
        if not isinstance(content.get(name), kind):
            raise UserError(f"{path} is not a qkv model's config: it has no {name!r}.")
    model = ModelConfig.from_dict(content["model"], str(path))
    decode = from_mapping(DecodeConfig, content.get("decode", {}), str(path))
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


def load_model(folder: Path, config: ModelConfig) -> Model:
    """Build the model and fill in its weights, naming each tensor that does not fit."""
    model = build_model(config)
    load_weights(model, read_tensors(folder / WEIGHTS), folder / WEIGHTS)
    return model.eval()


def load_tokenizers(folder: Path, config: ModelConfig) -> Tokenizers:
    """Read the vocabularies and check that the model knows all of their tokens."""
    tokenizers = Tokenizers.load(folder)
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


def load_encoder_decoder(folder: Path, config: ModelConfig) -> EncoderDecoder:
    """As `load_model`, for a task that needs this family."""
    model = load_model(folder, config)
    if not isinstance(model, EncoderDecoder):
        raise UserError(f"{folder} holds a model of family {config.family!r}, not encoder-decoder.")
    return model
