"""A model as a Hugging Face folder: what AutoModel and AutoTokenizer load without a flag."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from qkv.config import DecodeConfig, ModelConfig
from qkv.convert.architecture import Architecture, Values
from qkv.convert.chat import write_chat
from qkv.convert.checkpoint import Checkpoint
from qkv.convert.describe import EXTRAS, SECTIONS, plain_content
from qkv.convert.fit import fitting, with_halves, with_plain_angles
from qkv.convert.frame import Frame
from qkv.convert.generation import write_generation
from qkv.convert.halves import Reordered
from qkv.convert.heads import head_to_write, write_labels
from qkv.convert.known import ARCHITECTURES, LABELLED
from qkv.convert.padding import with_padding
from qkv.convert.tokenizer_export import write_tokenizer
from qkv.convert.weights import (
    Shape,
    add_spare,
    applicable,
    expected_shapes,
    read_fitting,
    write_weights,
)
from qkv.files import write_json, write_text
from qkv.model import parameter_shapes
from qkv.tasks import Prompting, Tokenizers
from qkv.tasks.classify import Classes
from qkv.tasks.folder import (
    CARD,
    Source,
    load_config,
    load_prompting,
    load_section,
    load_tokenizers,
)
from qkv.weights import write_tensors


@dataclass(frozen=True)
class _Shapes:
    """Tensors that are yet to be written."""

    shapes: Mapping[str, Shape]

    def __getitem__(self, name: str) -> Tensor:
        raise KeyError(name)


def write_huggingface(source: Source, folder: Path) -> None:
    """Write a model into a folder in the words of Hugging Face."""
    source = with_padding(source)
    task, config, decode = load_config(source)
    in_file, weights = _in_their_order(config, read_fitting(source, config))
    head = head_to_write(task, in_file)
    architecture = fitting(LABELLED if config.causal else ARCHITECTURES, in_file, head)
    tokenizers = None if config.patch_size else load_tokenizers(source, config)
    prompting = load_prompting(source) if config.family == "decoder" else None
    chat = _chat(prompting, tokenizers)
    rules, shapes = applicable(architecture, in_file, head)
    spare = architecture.spare(in_file, head)
    theirs = _config(architecture, in_file, head, source.content)
    written = Checkpoint(
        folder,
        theirs,
        _Shapes({**expected_shapes(rules, shapes), **dict.fromkeys(spare, ())}),
        chat=chat,
        generation=_generation(in_file, decode),
        tokenizer={"add_bos_token": prompting.bos} if prompting else {},
        **({} if config.patch_size and head == "none" else _beside(source.content, head)),
    )
    target = tokenizers.target if tokenizers else None
    extras = _difference(source.content, plain_content(architecture, written, target)[1])
    tensors = add_spare(write_weights(rules, weights), spare)
    kind = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    write_tensors(folder / "model.safetensors", tensors, {"format": "pt"})
    write_json(folder / "config.json", {**theirs, "dtype": kind, EXTRAS: extras})
    _write_beside(folder, written, head)
    if tokenizers:
        frame = _frame(architecture, config, source, prompting)
        _write_tokenizers(folder, frame, in_file, tokenizers, chat)
    copy_card(source, folder)


def _in_their_order(
    config: ModelConfig, weights: Mapping[str, Tensor]
) -> tuple[ModelConfig, Mapping[str, Tensor]]:
    """The same model where they lay it out in another way, or say it in other words."""
    if config.positions == "sinusoidal" and config.family == "encoder-decoder":
        return with_halves(config), Reordered(weights, to_halves=True)
    if config.positions == "rotary" and config.rotary_scaling == "ntk":
        return with_plain_angles(config), weights
    return config, weights


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


def _frame(
    architecture: Architecture, config: ModelConfig, source: Source, prompting: Prompting | None
) -> Frame:
    if prompting and prompting.bos:
        return Frame((config.bos_id,))
    own = load_section(source, "classify", Classes).frame if config.causal else ()
    if not own:
        return architecture.frame(config)
    before, between, after = own
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


def _generation(config: ModelConfig, decode: DecodeConfig) -> Values:
    if config.family == "encoder":
        return {}
    found = {
        **write_generation(decode, config),
        "pad_token_id": _padding(config),
        "eos_token_id": _ends(config),
    }
    if config.family == "decoder":
        return {**found, "bos_token_id": _known(config, config.bos_id)}
    longest = {} if decode.max_length else {"max_length": config.max_length}
    return {**found, **longest, "decoder_start_token_id": config.bos_id}


def _chat(prompting: Prompting | None, tokenizers: Tokenizers | None) -> str | None:
    if prompting is None or prompting.chat is None or tokenizers is None:
        return None
    names = tokenizers.target.names
    start, end = names.get("start", ""), names.get("end", "")
    return write_chat(prompting.chat, prompting.talk_bos, start, end)


def _beside(content: Mapping[str, Any], head: str) -> dict[str, Any]:
    """What stands in files of its own: how a text's vector is taken, how pixels are scaled."""
    if head == "none":
        embed = content.get("embed", {})
        mean = embed.get("pooling", "mean") == "mean"
        return {
            "pooling": {"pooling_mode_mean_tokens": mean, "pooling_mode_cls_token": not mean},
            "normalize": embed.get("normalize", True),
        }
    if head == "image":
        scale = content["classify"]
        return {
            "images": {
                "image_mean": list(scale["mean"]),
                "image_std": list(scale["deviation"]),
                "do_normalize": True,
                "do_rescale": True,
                "do_resize": True,
            }
        }
    return {}


def _write_beside(folder: Path, written: Checkpoint, head: str) -> None:
    if written.generation:
        write_json(folder / "generation_config.json", written.generation)
    if head == "none" and written.pooling is not None:
        width = written.config["hidden_size"]
        pooling = {"word_embedding_dimension": width, **written.pooling}
        write_json(folder / "1_Pooling" / "config.json", pooling)
        write_json(folder / "modules.json", _modules(written.normalize))
    if head == "image":
        config = written.config
        size = {"height": config["image_size"], "width": config["image_size"]}
        kind = {"image_processor_type": "ViTImageProcessor", "size": size}
        write_json(folder / "preprocessor_config.json", {**kind, **written.images})


def _modules(normalize: bool) -> list[Values]:
    """What a sentence-transformers folder consists of."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    paths = ["", "1_Pooling", "2_Normalize"]
    return [
        {
            "idx": number,
            "name": str(number),
            "path": path,
            "type": f"sentence_transformers.models.{kind}",
        }
        for number, (kind, path) in enumerate(zip(kinds, paths, strict=False))
    ]


def _write_tokenizers(
    folder: Path, frame: Frame, config: ModelConfig, tokenizers: Tokenizers, chat: str | None
) -> None:
    length = config.max_length
    left = config.family == "decoder"
    write_tokenizer(folder, tokenizers.source, frame, length, chat, pad_left=left)
    if not tokenizers.shared:  # AutoTokenizer.from_pretrained(folder, subfolder="target")
        write_tokenizer(folder / "target", tokenizers.target, frame, length)


def _difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Values:
    """What of our config.json does not come back from their words."""
    found: Values = {}
    again = _plain(theirs)
    said = {name: value for name, value in _plain(ours).items() if name in SECTIONS}
    for name, value in said.items():
        back = again.get(name)
        if isinstance(value, dict) and isinstance(back, dict):
            part = {key: one for key, one in value.items() if key not in back or back[key] != one}
            found |= {name: part} if part else {}
        elif value != back:
            found[name] = value
    return found


def _plain(content: Mapping[str, Any]) -> dict[str, Any]:
    return dict(json.loads(json.dumps(dict(content))))


def copy_card(source: Source, folder: Path) -> None:
    """Take a model's README along as it is, or say in a new one what is known of the model."""
    if (source.path / CARD).is_file():
        shutil.copyfile(source.path / CARD, folder / CARD)
        return
    _, config, _ = load_config(source)
    size = sum(math.prod(shape) for shape in parameter_shapes(config).values())
    write_text(
        folder / CARD,
        f"# {source.path.stem}\n\nConverted by qkv from {source.path.name}: {config.family}, "
        f"{size:,} parameters, vocabulary {config.vocab_size:,}, for "
        f"`{source.content['task']}`. Of its data, licence and scores nothing was said there.\n",
    )
