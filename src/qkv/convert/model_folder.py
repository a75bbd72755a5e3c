"""Our model folder: config.json, model.safetensors, tokenizer.json and a small README.md."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from qkv import __version__
from qkv.config import DRAWING, DecodeConfig, ModelConfig
from qkv.config.fields import from_mapping
from qkv.convert.adapted_weights import AdaptedWeights, Adapter
from qkv.device import float_dtype
from qkv.errors import UserError
from qkv.files import refuse_special, write_json
from qkv.model import Decoder, Encoder, EncoderDecoder, Model, empty_model, parameter_shapes
from qkv.model.quantized import quantizable_names, quantize, quantized_matrices
from qkv.model.quantized_matrix import Int4Matrix, Int8Matrix, QuantizedMatrix
from qkv.text import Tokenizer
from qkv.text.chat import ChatTemplate
from qkv.text.languages import Languages
from qkv.weights import (
    LazyWeights,
    StoredTensors,
    check_fit,
    checksum,
    damaged,
    fill_empty,
    read_metadata,
    write_tensors,
)

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # PEFT's
TOKENIZER, SOURCE_TOKENIZER = "tokenizer.json", "source_tokenizer.json"
TOKENIZER_FILES = (
    TOKENIZER,
    SOURCE_TOKENIZER,
    "special_tokens_map.json",
    "source_special_tokens_map.json",
)
FORMAT = 1  # of config.json; a larger number is from a later version of qkv
SAVED_AS = "saved_as"
"""In config.json and the weights' metadata: the digest of a save, "-", and the weights' checksum.

Saves of earlier versions have no checksum."""
BASE_SAVED_AS = (
    "base_saved_as"  # in an adapter's config.json: the same of the base, where it has one
)
IN_8_BITS = (".table.weight", ".projection.weight")  # in int4 too: they lose more than they save
CPU = torch.device("cpu")
M = TypeVar("M", EncoderDecoder, Encoder, Decoder)
T = TypeVar("T")


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
                (folder / name).unlink(missing_ok=True)  # of a model saved here before
        else:
            self.source.save(folder / SOURCE_TOKENIZER)

    @classmethod
    def load(cls, folder: Path) -> Tokenizers:
        """Read the tokenizers that `save` wrote."""
        refuse_special(folder / TOKENIZER, folder / SOURCE_TOKENIZER)
        target = Tokenizer.load(folder / TOKENIZER)
        own = folder / SOURCE_TOKENIZER
        return cls(Tokenizer.load(own) if own.exists() else target, target)


class ChatTemplateError(UserError):
    """A chat template that cannot be used; the sentence says why."""


@dataclass(frozen=True)
class StoredModel:
    """A model on disk, ours or another library's, as our config.json would describe it."""

    path: Path  # for error messages
    content: Mapping[str, Any]  # of config.json, in our words
    read_tokenizers: Callable[[], Tokenizers]
    read_weights: Callable[[], Mapping[str, Tensor]]  # by our names
    read_chat: Callable[[], Mapping[str, Any]] | None = None
    """The values of "chat" and "chat_bos", where a Jinja program must be run to know them; raises
    `ChatTemplateError` where that has no equal among our templates."""
    dtype: str | None = None  # of the weights once they are loaded, one of DTYPES; None: as usual
    model_type: str = ""  # of a Hugging Face checkpoint, which an export then writes again
    adapter: Path | None = None  # the folder of an adapter that was trained here

    @property
    def recipe_path(self) -> Path:
        """The recipe of the run that made the model, if there is one."""
        return (self.adapter or self.path) / "recipe.toml"

    def __str__(self) -> str:
        return str(self.path)

    def full_content(self) -> dict[str, Any]:
        """The content with the chat template, or a warning that it is left out."""
        try:
            return {**self.content, **(self.read_chat() if self.read_chat else {})}
        except ChatTemplateError as error:
            warnings.warn(f"{error} It was left out.", stacklevel=2)
            return {**self.content, "chat": None}


def open_model_folder(folder: Path, content: Mapping[str, Any] | None = None) -> StoredModel:
    """Open a model folder of ours; its tokenizers are parsed once, when first asked for."""
    content = read_config(folder) if content is None else content
    check_once = cache(check_whole)

    def weights() -> StoredTensors:
        check_same_save(folder, WEIGHTS, content)
        check_once(folder / WEIGHTS)
        return StoredTensors(folder / WEIGHTS)

    return StoredModel(folder, content, cache(lambda: Tokenizers.load(folder)), weights)


def check_whole(path: Path) -> None:
    """Refuse weights of ours that differ from their checksum, as after a flipped bit."""
    expected = read_metadata(path).get(SAVED_AS, "").partition("-")[2]
    if expected and StoredTensors(path).checksum() != expected:
        raise damaged(path)


def check_same_save(folder: Path, weights: str, content: Mapping[str, Any]) -> None:
    """Refuse a folder whose config.json and file of weights are from different saves."""
    saved_as = read_metadata(folder / weights).get(SAVED_AS)
    if saved_as and saved_as != content.get(SAVED_AS):
        raise UserError(
            f"{folder} holds the {CONFIG} of one save and the {weights} of another, so a save was "
            f"cut short or a file was copied alone; save the model again, resume its training, or "
            f"copy all files from one folder."
        )


ReadChat = Callable[[], tuple[ChatTemplate | None, bool | None]]


@dataclass(frozen=True)
class Prompting:
    """How prompts and conversations begin and are written, as they were in training."""

    bos: bool = True  # a text begins with BOS
    chat_template: ChatTemplate | ReadChat | None = None  # or a function that finds it out
    chat_bos: bool | None = None  # a conversation begins with BOS; None: as a text does

    @cached_property
    def _chat(self) -> tuple[ChatTemplate | None, bool | None, str]:
        if not callable(self.chat_template):
            return self.chat_template, self.chat_bos, ""
        try:
            return *self.chat_template(), ""
        except ChatTemplateError as error:
            return None, None, str(error)

    @property
    def chat(self) -> ChatTemplate | None:
        """The template of a model that was taught to answer."""
        return self._chat[0]

    @property
    def chat_problem(self) -> str:
        """Why the model's template cannot be used, where it has one; or nothing."""
        return self._chat[2]

    @property
    def talk_bos(self) -> bool:
        """Whether a conversation begins with BOS."""
        return self.bos if self._chat[1] is None else self._chat[1]

    def to_dict(self) -> dict[str, Any]:
        """The values for config.json."""
        chat, chat_bos, _ = self._chat
        content = {"bos": self.bos, "chat": chat.to_dict() if chat else None}
        return content if chat_bos is None else {**content, "chat_bos": chat_bos}


def model_content(
    task: str,
    model: ModelConfig,
    decode: DecodeConfig | None = None,
    prompting: Prompting | None = None,
    **sections: Any,
) -> dict[str, Any]:
    """The content of config.json: the task, the model, its decoding and the task's own sections."""
    content: dict[str, Any] = {"task": task, "model": model.to_dict()}
    if decode:
        content["decode"] = dataclasses.asdict(decode)
    return {**content, **(prompting.to_dict() if prompting else {}), **sections}


def save_model_folder(
    folder: str | Path,
    content: Mapping[str, Any],
    weights: Model | Mapping[str, Tensor],
    tokenizers: Tokenizers | None = None,
) -> None:
    """Write a model folder so that no mixture of an old and a new model can be loaded.

    All files are written beside the old ones first, so that an error or a full disk changes
    nothing. Then the weights are moved into place, the tokenizers, and config.json last. The
    weights and config.json carry one digest: after a kill between two moves they differ, and the
    folder is refused.
    """
    folder, adapter = Path(folder), dict[str, Any]()
    if isinstance(weights, nn.Module) and weights.adapted_from:
        from qkv.convert.adapter import adapter_tensors, adapter_values

        adapter = adapter_values(weights, content["task"])
        if weights.adapted_from.saved_as:
            content = {**content, BASE_SAVED_AS: weights.adapted_from.saved_as}
        named = adapter_tensors(weights, content["task"])
    else:
        named = _tensors(weights) if isinstance(weights, nn.Module) else dict(weights)
    tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in named.items()}
    beside = folder / f".{os.getpid()}.writing"
    shutil.rmtree(beside, ignore_errors=True)  # of a process that was killed
    try:
        beside.mkdir(parents=True)
        if tokenizers:
            tokenizers.save(beside)
        digest = _digest(content, tensors, beside)
        # One entry alone: safetensors writes several in any order, and equal models should be equal
        # files.
        write_tensors(
            beside / (ADAPTER_WEIGHTS if adapter else WEIGHTS), tensors, {SAVED_AS: digest}
        )
        if adapter:
            write_json(beside / ADAPTER_CONFIG, adapter)
        write_json(
            beside / CONFIG,
            {"format": FORMAT, "qkv": __version__, **content, SAVED_AS: digest},
        )
        for name in (WEIGHTS, ADAPTER_WEIGHTS, ADAPTER_CONFIG, *TOKENIZER_FILES, CONFIG):
            if (beside / name).exists():
                (beside / name).replace(folder / name)
            else:
                (folder / name).unlink(missing_ok=True)  # of a model saved here before
    except OSError as error:  # named by the path that people know
        error.filename = str(error.filename or folder).replace(str(beside), str(folder))
        raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """A model's weights by name; quantised ones with their scales beside them."""
    tensors: dict[str, Tensor] = dict(model.named_parameters())
    for name, matrix in quantized_matrices(model).items():
        tensors |= matrix.tensors(name)
    return tensors


def _digest(content: Mapping[str, Any], tensors: Mapping[str, Tensor], beside: Path) -> str:
    """A digest of all that a save writes: equal saves have equal digests."""
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
    for name in TOKENIZER_FILES:
        if (beside / name).exists():
            digest.update((beside / name).read_bytes())
    for name, tensor in tensors.items():
        digest.update(name.encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return f"{digest.hexdigest()[:32]}-{checksum(tensors)}"


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json, ours or another library's."""
    path = folder / CONFIG
    refuse_special(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        why, hint = f"no {CONFIG}", "train one with `qkv train` or `qkv demo`, or check the path"
        if folder.is_file():
            why, hint = "but a file", "name its folder, or a .gguf file"
        raise UserError(f"{folder} is not a model folder ({why}); {hint}.") from error
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path} is truncated or not JSON ({error}); restore it or fetch it again."
        ) from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is no JSON object; restore it or fetch it again.")
    return content


def _reading(config: Path) -> str:
    """Say what to do instead, where a config is of another tool."""
    if (config.parent / "model.bin").is_file():
        return (
            "; it looks like one of CTranslate2's, whose folders are written and not read, so "
            "name the folder that it was converted from."
        )
    return "; name a model folder of qkv, or one of Hugging Face's, with a 'model_type'."


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the file in every mistake: what is wrong with a value is said without it."""
    try:
        yield
    except UserError as error:
        if str(path) in str(error):
            raise
        raise UserError(f"{path}: {error}") from error


def load_config(stored: StoredModel) -> tuple[str, ModelConfig, DecodeConfig]:
    """Read the task, the model and its decoding."""
    content, path = stored.content, stored.path / CONFIG
    number = content.get("format", FORMAT)
    if not isinstance(number, int) or number > FORMAT:
        raise UserError(
            f"{path} has format {number!r}, but this version of qkv ({__version__}) reads formats "
            f"up to {FORMAT}; install a newer qkv to read it."
        )
    for name, kind in (("task", str), ("model", dict)):
        if not isinstance(content.get(name), kind):
            raise UserError(
                f"{path} is not a qkv model's config: it has no {name!r}{_reading(path)}"
            )
    with _naming(path):
        model = ModelConfig.from_dict(content["model"], str(path))
    return content["task"], model, load_section(stored, "decode", DecodeConfig)


def as_causal_encoder(stored: StoredModel) -> StoredModel:
    """Turn a decoder without its output into a causal encoder (GPT's own classifiers)."""
    _, config, _ = load_config(stored)
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
            for name, tensor in stored.read_weights().items()
            if not name.startswith("output.")
        }

    content = {**stored.content, "model": body.to_dict()}
    return dataclasses.replace(stored, content=content, read_weights=weights)


def says_how_to_draw(stored: StoredModel) -> bool:
    """Whether the settings of a model decide if tokens are drawn at random, and how."""
    decode = stored.content.get("decode", {})
    return not decode.keys().isdisjoint({"sample", *DRAWING})


def load_section(stored: StoredModel, name: str, cls: type[T]) -> T:
    """Read a section of config.json as the dataclass `cls`."""
    section, path = stored.content.get(name, {}), stored.path / CONFIG
    if not isinstance(section, dict):
        raise UserError(f"{path}: {name!r} must be an object; restore the file.")
    with _naming(path):
        return from_mapping(cls, section, f"{path}: {name}")


def load_languages(stored: StoredModel) -> Languages | None:
    """Read the language tokens of a translator; None where it has none."""
    values = stored.content.get("languages")
    return None if values is None else Languages.from_dict(values, str(stored.path / CONFIG))


def load_prompting(stored: StoredModel) -> Prompting:
    """Read how a language model is prompted; a Jinja program is left unrun until it is needed."""
    bos, read_chat = stored.content.get("bos", True), stored.read_chat
    if not isinstance(bos, bool):
        raise UserError(f"{stored.path / CONFIG}: 'bos' must be true or false; restore the file.")
    if read_chat:
        return Prompting(bos, lambda: _chat(stored.path, read_chat()))
    return Prompting(bos, *_chat(stored.path, stored.content))


def _chat(path: Path, content: Mapping[str, Any]) -> tuple[ChatTemplate | None, bool | None]:
    chat, chat_bos = content.get("chat"), content.get("chat_bos")
    if not isinstance(chat_bos, bool | None):
        raise UserError(f"{path / CONFIG}: 'chat_bos' must be true or false; restore the file.")
    if not isinstance(chat, dict | None):
        raise UserError(f"{path / CONFIG}: 'chat' must be a template or null; restore the file.")
    return ChatTemplate.from_dict(chat, f"{path / CONFIG}: chat") if chat else None, chat_bos


def fitting_weights(stored: StoredModel, config: ModelConfig) -> Mapping[str, Tensor]:
    """Open the weights, and check that each has its name and shape before any is read."""
    weights = stored.read_weights()
    if isinstance(weights, StoredTensors):  # those of other libraries check themselves
        shapes = parameter_shapes(config)
        empty = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
        check_fit(empty, weights, stored.path / WEIGHTS)
    return weights


def load_model(stored: StoredModel, config: ModelConfig, device: torch.device = CPU) -> Model:
    """Build the model around its weights on a device, naming each tensor that does not fit."""
    model, weights = empty_model(config), stored.read_weights()
    path = stored.path / WEIGHTS
    adapters: list[Adapter] = []
    if is_quantized(stored, weights):
        if isinstance(weights, AdaptedWeights):  # integers cannot be updated
            adapters, weights = weights.adapters(), weights.without_updates()
        check_fit(dict(model.named_parameters()), weights, path)
        quantize(model, partial(_matrix, weights, stored.dtype), device)
        weights = {name: weights[name] for name, _ in model.named_parameters()}
    floats = float_dtype(device, stored.dtype)
    fill_empty(model, weights, path, device, floats)
    model = model.to(device, floats).eval()  # tables that were computed
    for adapter in adapters:
        adapter.attach(model)
    return model


def converted_tensors(stored: StoredModel, config: ModelConfig) -> dict[str, Tensor]:
    """Read all weights as a file stores them in the model's dtype, or as they are."""
    weights = fitting_weights(stored, config)
    if stored.dtype in ("fp32", "bf16"):
        floats = float_dtype(CPU, stored.dtype)
        return {name: weights[name].to(floats) for name in weights}
    if not is_quantized(stored, weights):
        return dict(weights)
    names = quantizable_names(empty_model(config))
    tensors: dict[str, Tensor] = {}
    for name in weights:
        matrix = _matrix(weights, stored.dtype, name) if name in names else None
        tensors |= matrix.tensors(name) if matrix else {name: weights[name]}
    return tensors


def is_quantized(stored: StoredModel, weights: Mapping[str, Tensor] | None = None) -> bool:
    """Whether some weights become integers: as the dtype says, or without one as in the file."""
    if stored.dtype is None:
        weights = stored.read_weights() if weights is None else weights
        weights = weights.without_updates() if isinstance(weights, AdaptedWeights) else weights
        return isinstance(weights, LazyWeights) and bool(weights.quantized)
    return stored.dtype in ("int8", "int4")


def _matrix(weights: Mapping[str, Tensor], dtype: str | None, name: str) -> QuantizedMatrix | None:
    """Return a weight's integers as they are in the file, or rounded to the dtype.

    Embeddings, output matrices and what has no whole groups of inputs get 8 bits instead of 4.
    """
    stored = weights.matrix(name) if isinstance(weights, LazyWeights) else None
    if dtype is None:
        return stored
    weight = weights[name] if stored is None else stored
    is_int4 = dtype == "int4" and Int4Matrix.fits(weight.shape) and not name.endswith(IN_8_BITS)
    kind = Int4Matrix if is_int4 else Int8Matrix
    return stored if isinstance(stored, kind) else kind.of(weights[name])


def load_family(
    stored: StoredModel, config: ModelConfig, family: type[M], device: torch.device
) -> M:
    """Load a model that must be of a certain family."""
    model = load_model(stored, config, device)
    if not isinstance(model, family):
        needed = "encoder-decoder" if family is EncoderDecoder else family.__name__.lower()
        raise UserError(f"{stored} holds a model of family {config.family!r}, not {needed}.")
    return model


def load_tokenizers(stored: StoredModel, config: ModelConfig) -> Tokenizers:
    """Read the vocabularies and check that the model knows all of their tokens."""
    tokenizers = stored.read_tokenizers()
    if config.family == "encoder-decoder":  # others may do without some
        check_special(stored, config, "pad_id", "bos_id", "eos_id", "start_id")
    for tokenizer, size in (
        (tokenizers.source, config.source_vocab_size or config.vocab_size),
        (tokenizers.target, config.vocab_size),
    ):
        if len(tokenizer) > size:
            raise UserError(
                f"{stored}: the tokenizer has {len(tokenizer):,} tokens, but the model knows only "
                f"{size:,}; take both from the same run."
            )
    return tokenizers


def check_special(where: StoredModel | str, config: ModelConfig, *names: str) -> None:
    """Check that the model knows the special tokens that it will read."""
    for name in names:
        if getattr(config, name) >= config.vocab_size:
            raise UserError(
                f"{where}: {name} is {getattr(config, name)}, but the model's tokens go from 0 to "
                f"{config.vocab_size - 1}; restore its config.json."
            )
