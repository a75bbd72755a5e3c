"""A model as a Hugging Face folder: what AutoModel and AutoTokenizer load without a flag."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.config import DecodeConfig, ModelConfig
from qkv.convert.architectures.architecture import Architecture, Values
from qkv.convert.huggingface.chat_program import write_chat
from qkv.convert.huggingface.content import EXTRAS, SECTIONS, chat_content, plain_content
from qkv.convert.huggingface.fitting import fitting
from qkv.convert.huggingface.foreign_checkpoint import ForeignCheckpoint
from qkv.convert.huggingface.foreign_weights import (
    Shape,
    add_spare,
    applicable,
    expected_shapes,
    write_weights,
)
from qkv.convert.huggingface.generation_config import write_generation
from qkv.convert.huggingface.language_tokens import language_frame, language_settings
from qkv.convert.huggingface.sentence_modules import sentence_modules, write_sentence_modules
from qkv.convert.huggingface.task_heads import write_labels
from qkv.convert.huggingface.wave_order import Reordered
from qkv.convert.model_folder import (
    CARD,
    Prompting,
    StoredModel,
    Tokenizers,
    fitting_weights,
    load_config,
    load_languages,
    load_prompting,
    load_tokenizers,
)
from qkv.convert.tokenizers.frame import Frame
from qkv.convert.tokenizers.tokenizer_export import write_tokenizer
from qkv.files import write_json, write_text
from qkv.model import parameter_shapes
from qkv.text import PAD, Tokenizer
from qkv.text.languages import Languages
from qkv.weights import write_tensors

EMBEDDING = "embedding.table.weight"


@dataclass(frozen=True)
class _Shapes:
    """Tensors that are yet to be written."""

    shapes: Mapping[str, Shape]

    def __getitem__(self, name: str) -> Tensor:
        raise KeyError(name)


def write_huggingface(stored: StoredModel, folder: Path) -> None:
    """Write a model as a Hugging Face folder."""
    stored = _with_padding(stored)
    task, config, decode = load_config(stored)
    architecture, in_file, head = fitting(config, task, stored.model_type)
    weights = fitting_weights(stored, config)
    if in_file.positions != config.positions:
        weights = Reordered(weights, to_halves=True)
    tokenizers = None if config.patch_size else load_tokenizers(stored, config)
    prompting = load_prompting(stored) if config.family == "decoder" else None
    languages = load_languages(stored)
    more = language_settings(languages) if languages else {}
    rules, shapes = applicable(architecture, in_file, head)
    spare = architecture.spare(in_file, head)
    values = _config(architecture, in_file, head, stored.content)
    embeds = head == "none" and not config.patch_size  # a text's vector is what it is for
    written = ForeignCheckpoint(
        folder,
        values,
        _Shapes({**expected_shapes(rules, shapes), **dict.fromkeys(spare, ())}),
        chat=_jinja(prompting, tokenizers),
        generation=_generation(in_file, decode, languages),
        tokenizer={"add_bos_token": prompting.bos} if prompting else more,
        sentences=sentence_modules(in_file, stored.content.get("embed", {})) if embeds else None,
        images=_images(stored.content) if head == "image" else {},
    )
    extras = _extras(stored, architecture, written, tokenizers)
    tensors = add_spare(write_weights(rules, weights), spare)
    dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    if written.sentences is not None:
        write_sentence_modules(folder, written.sentences, in_file, tensors)
    write_tensors(folder / "model.safetensors", tensors, {"format": "pt"})
    write_json(folder / "config.json", {**values, "dtype": dtype, EXTRAS: extras})
    _write_other_files(folder, written, head)
    if tokenizers:
        frame = (_own_frame(stored) if config.causal else None) or architecture.frame(config)
        frame = Frame((config.bos_id,)) if prompting and prompting.bos else frame
        frame = language_frame(languages, frame) if languages else frame
        length, left = in_file.max_length, in_file.family == "decoder"
        write_tokenizer(folder, tokenizers.source, frame, length, written.chat, left, more)
        if not tokenizers.shared:  # AutoTokenizer.from_pretrained(folder, subfolder="target")
            write_tokenizer(folder / "target", tokenizers.target, frame, length)
    copy_card(stored, folder)


def _config(
    architecture: Architecture, config: ModelConfig, head: str, content: Mapping[str, Any]
) -> Values:
    section = content.get({"token": "tag"}.get(head, "classify"), {})
    found = {
        "architectures": [architecture.classes[head]],
        "model_type": architecture.model_type,
        **architecture.write_config(config),
        **write_labels(head, section),
    }
    if config.patch_size:
        return found
    found |= {"pad_token_id": _padding(config), "eos_token_id": _ends(config)}
    if config.family == "encoder-decoder":
        return {**found, "decoder_start_token_id": config.bos_id, "is_encoder_decoder": True}
    return {**found, "bos_token_id": _known(config, config.bos_id)}


def _own_frame(stored: StoredModel) -> Frame | None:
    """The special tokens around a classifier's texts, where config.json says them."""
    parts = stored.content.get("classify", {}).get("frame") or ()
    if len(parts) != 3:
        return None
    before, between, after = (tuple(part) for part in parts)
    return Frame(before, between, after)


def _ends(config: ModelConfig) -> int | list[int] | None:
    return list(config.ends) if config.other_ends else _known(config, config.eos_id)


def _padding(config: ModelConfig) -> int | None:
    """A decoder whose texts never end may have none either: ours is then the first token."""
    none = config.pad_id == 0 and config.eos_id >= config.vocab_size
    return None if none else config.pad_id


def _known(config: ModelConfig, id: int) -> int | None:
    """An id, unless it says that there is no such token."""
    return id if id < config.vocab_size else None


def _generation(config: ModelConfig, decode: DecodeConfig, languages: Languages | None) -> Values:
    if config.family == "encoder":
        return {}
    values = {
        **write_generation(decode, config, languages),
        "pad_token_id": _padding(config),
        "eos_token_id": _ends(config),
    }
    if config.family == "decoder":
        values["bos_token_id"] = _known(config, config.bos_id)
    else:
        values.setdefault("decoder_start_token_id", config.bos_id)
    return values


def _jinja(prompting: Prompting | None, tokenizers: Tokenizers | None) -> str | None:
    """The chat template as a Jinja program."""
    if prompting is None or prompting.chat is None or tokenizers is None:
        return None
    names = tokenizers.target.names
    start, end = names.get("start", ""), names.get("end", "")
    return write_chat(prompting.chat, prompting.talk_bos, start, end)


def _images(content: Mapping[str, Any]) -> Values:
    """How pixels are scaled."""
    scale = content["classify"]
    return {
        "image_mean": list(scale["mean"]),
        "image_std": list(scale["deviation"]),
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
    }


def _write_other_files(folder: Path, written: ForeignCheckpoint, head: str) -> None:
    if written.generation:
        write_json(folder / "generation_config.json", written.generation)
    if head == "image":
        config = written.config
        size = {"height": config["image_size"], "width": config["image_size"]}
        kind = {"image_processor_type": "ViTImageProcessor", "size": size}
        write_json(folder / "preprocessor_config.json", {**kind, **written.images})


def _extras(
    stored: StoredModel,
    architecture: Architecture,
    written: ForeignCheckpoint,
    tokenizers: Tokenizers | None,
) -> Values:
    """The values of our config.json that cannot be read back from what is written."""
    target = tokenizers.target if tokenizers else None
    again = plain_content(architecture, written, target)[1]
    if written.chat and target:
        again |= chat_content(written, target, again["bos"])
    again = _plain(again)
    extras: Values = {}
    for name, value in _plain(stored.full_content()).items():
        back = again.get(name)
        if name not in SECTIONS or value == back:
            continue
        if isinstance(value, dict) and isinstance(back, dict):
            value = {key: own for key, own in value.items() if back.get(key, _plain) != own}
        if value or not isinstance(back, dict):
            extras[name] = value
    return extras


def _plain(content: Mapping[str, Any]) -> dict[str, Any]:
    return dict(json.loads(json.dumps(dict(content))))


def copy_card(stored: StoredModel, folder: Path) -> None:
    """Copy a model's README, or write a new one that says what is known of the model."""
    if (stored.path / CARD).is_file():
        shutil.copyfile(stored.path / CARD, folder / CARD)
        return
    _, config, _ = load_config(stored)
    size = sum(math.prod(shape) for shape in parameter_shapes(config).values())
    write_text(
        folder / CARD,
        f"# {stored.path.stem}\n\nConverted by qkv from {stored.path.name}: {config.family}, "
        f"{size:,} parameters, vocabulary {config.vocab_size:,}, for "
        f"`{stored.content['task']}`. Its data, licence and scores are not known.\n",
    )


def _with_padding(stored: StoredModel) -> StoredModel:
    """The model with a pad token that is not the one its texts end with.

    A causal classifier of transformers' labels the last token that is not padding. The pad token
    becomes another special token, or a new one where there is no other.
    """
    _, config, _ = load_config(stored)
    frame = _own_frame(stored) or Frame(after=(config.eos_id,))
    if not config.causal or config.pad_id not in frame.after[-1:]:
        return stored
    tokenizer = copy.deepcopy(load_tokenizers(stored, config).target)
    if {*tokenizer.special_ids} <= {*frame.after}:
        tokenizer.add_special([PAD])
    unused = [
        name for name in tokenizer.special_names if tokenizer.special_id(name) not in frame.after
    ]
    padded = Tokenizer(tokenizer._backend, {**tokenizer.names, "padding": unused[0]})
    size = max(config.vocab_size, len(padded))

    def weights() -> dict[str, Tensor]:
        tensors = dict(fitting_weights(stored, config))
        table = tensors[EMBEDDING]
        new = table.new_zeros(size - config.vocab_size, table.shape[1])
        return {**tensors, EMBEDDING: torch.cat([table, new])}

    model = {**config.to_dict(), "pad_id": padded.pad_id, "vocab_size": size}
    return dataclasses.replace(
        stored,
        content={**stored.content, "model": model},
        read_tokenizers=lambda: Tokenizers(padded, padded),
        read_weights=weights,
    )
