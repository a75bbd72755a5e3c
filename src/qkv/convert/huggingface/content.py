"""What a foreign checkpoint is, as our config.json says it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from qkv.config import DecodeConfig, ModelConfig
from qkv.config.fields import from_mapping, suggestion
from qkv.convert.architectures.architecture import Architecture, Values, check_values
from qkv.convert.architectures.bert import GUESSES
from qkv.convert.huggingface.chat_program import ChatProgramError, read_chat
from qkv.convert.huggingface.foreign_checkpoint import CONFIG, GENERATION, ForeignCheckpoint
from qkv.convert.huggingface.generation_config import read_generation
from qkv.convert.huggingface.language_tokens import read_languages
from qkv.convert.huggingface.task_heads import TASKS, head_of, head_values, read_section
from qkv.convert.model_folder import ChatTemplateError
from qkv.convert.tokenizers.frame import Frame, read_frame
from qkv.errors import UserError
from qkv.text import Tokenizer
from qkv.text.tokenizer import library_errors

EXTRAS = "qkv"  # what we wrote into their config.json because it has no word for it
SECTIONS: dict[str, Any] = {  # of our config.json, and what they are
    "task": str,
    "model": dict,
    "decode": dict,
    "bos": bool,
    "chat": dict | None,
    "chat_bos": bool,
    "embed": dict,
    "classify": dict,
    "tag": dict,
    "answer": dict,
    "languages": dict,
}


def read_content(
    architecture: Architecture, checkpoint: ForeignCheckpoint, tokenizer: Tokenizer | None
) -> tuple[str, Values]:
    """The head and the content of our config.json, but for a chat template that must be run."""
    head, content = plain_content(architecture, checkpoint, tokenizer)
    with _explained(checkpoint):
        content |= _extras(checkpoint.config.get(EXTRAS) or {}, content)
        _check_ids(ModelConfig.from_dict(content["model"], EXTRAS))
    return head, content


def _extras(given: Mapping[str, Any], content: Mapping[str, Any]) -> Values:
    """The sections that our export wrote into their config.json, merged over the content."""
    extras: Values = {}
    for name, value in given.items():
        if name not in SECTIONS:
            raise UserError(f"{EXTRAS}: unknown key {name!r}{suggestion(name, SECTIONS)}")
        if not isinstance(value, SECTIONS[name]):
            raise UserError(f"{EXTRAS}: {name} is of the wrong kind ({value!r}); fetch it again.")
        if name.startswith("chat") and "chat" not in content:
            continue  # `chat_content` merges these when the program has been run
        before = content.get(name)
        extras[name] = {**before, **value} if isinstance(before, dict) else value
    tasks = {*TASKS.values(), "denoise"}
    if given.get("task", "fill") not in tasks:
        raise UserError(f"{EXTRAS}: unknown task {given['task']!r}{suggestion('', sorted(tasks))}")
    return extras


def _check_ids(model: ModelConfig) -> None:
    """Refuse special tokens that the vocabulary has no room for."""
    begin = "decoder_start_token_id" if model.family == "encoder-decoder" else "bos_token_id"
    names = {
        "pad_id": "pad_token_id",
        "bos_id": begin,
        "eos_id": "eos_token_id",
        "start_id": "bos_token_id",
    }
    for ours, theirs in names.items():
        id = getattr(model, ours)
        decodes = model.family == "decoder" or model.causal
        never = decodes and id == model.eos_id  # an end that never comes
        if id >= model.vocab_size and not model.patch_size and not never:
            raise UserError(
                f"config.json: {theirs} is {id}, but the vocabulary has {model.vocab_size:,} "
                f"tokens; write the id that the token has in it."
            )


def plain_content(
    architecture: Architecture, checkpoint: ForeignCheckpoint, tokenizer: Tokenizer | None
) -> tuple[str, Values]:
    """The head and the content as their own files say them, without what our export added."""
    config = checkpoint.config
    with _explained(checkpoint):
        check_values(config)
        if config.get("quantization_config"):
            raise UserError(
                "config.json: there is a quantization_config, and of Hugging Face's files only "
                "plain weights can be read; take the model before it was quantised."
            )
        head = head_of(architecture, config, checkpoint.names)
        if head in GUESSES and checkpoint.sentences is not None:
            head = "none"  # for sentence-transformers reads the body alone
        values = architecture.read_config(config, checkpoint.names, head)
        values |= {"family": architecture.family, **head_values(head, config)}
        if head == "none" and checkpoint.sentences is not None:
            values |= checkpoint.sentences.vector
        if not values.get("patch_size"):
            # RoBERTa's padding tells where positions begin, whichever the tokenizer's is.
            values = {**_special_ids(architecture, checkpoint, tokenizer), **values}
            if architecture.family == "encoder" and not architecture.causal:
                values |= _separators(tokenizer, values["eos_id"])
        model = ModelConfig.from_dict(values)
        section = read_section(head, config, checkpoint.images)
        if architecture.causal:
            section["classify"] |= _around(checkpoint, tokenizer, architecture.frame(model))
    content: Values = {"task": TASKS[head], "model": model.to_dict(), **section}
    if head == "none":
        content["embed"] = _embedding(checkpoint, model)
    if architecture.family != "encoder":
        languages = read_languages(architecture, checkpoint, tokenizer)
        if languages is not None:
            content["languages"] = languages.to_dict()
        with _explained(checkpoint, GENERATION):
            check_values(checkpoint.generation)
            content["decode"] = read_generation(checkpoint.generation, model, languages)
            from_mapping(DecodeConfig, content["decode"], "decode")
    if architecture.family == "decoder":
        content["bos"] = _begins_with_bos(checkpoint, tokenizer, model.bos_id)
        if tokenizer is None or not checkpoint.chat:
            content["chat"] = None
    return head, content


@contextmanager
def _explained(checkpoint: ForeignCheckpoint, name: str = CONFIG) -> Iterator[None]:
    """Say of every mistake in a config in which file it is: older folders have config.json only."""
    path = checkpoint.path  # of a GGUF file
    if not path.is_file():
        path /= name if (path / name).is_file() else CONFIG
    try:
        yield
    except UserError as error:
        text = re.sub(r"^(config\.json: |model: |decode: )*", "", str(error))
        raise UserError(f"{path}: {text}") from error
    except KeyError as error:
        raise UserError(f"{path} does not say {error.args[0]!r}; fetch it again.") from error
    except (ArithmeticError, AttributeError, IndexError, TypeError, ValueError) as error:
        raise UserError(
            f"{path} has a value of the wrong kind ({error}); fetch it again."
        ) from error


def _special_ids(
    architecture: Architecture, checkpoint: ForeignCheckpoint, tokenizer: Tokenizer | None
) -> Values:
    """The ids of the tokens that are not text."""
    config = checkpoint.config
    ends = _listed(_generated(architecture, checkpoint, "eos_token_id"))
    pad = config.get("pad_token_id")
    if architecture.family == "encoder-decoder":
        start = _generated(architecture, checkpoint, "decoder_start_token_id")
        start = pad if start is None else start
        return {
            "pad_id": pad or 0,
            "bos_id": start or 0,
            "eos_id": [*ends, 0][0],
            "other_ends": tuple(id for id in ends[1:] if id < config["vocab_size"]),
        }
    if architecture.family == "encoder" and not architecture.causal:
        names = tokenizer.names if tokenizer else {}
        given = {
            "pad_id": ("padding", 0 if pad is None else pad),
            "bos_id": ("start", config.get("bos_token_id") or 0),
            "eos_id": ("end", [*ends, 0][0]),
        }
        return {
            ours: tokenizer.special_id(names[role]) if tokenizer and role in names else default
            for ours, (role, default) in given.items()
        }
    # Small models often keep the id 50256 of GPT-2, and have no such token: it is as if none were
    # said. Where there is no end at all it gets the id `size`, which never comes.
    size = config["vocab_size"]
    ends, begins, pads = (
        [id for id in ids if 0 <= id < size]
        for ids in (ends, _listed(config.get("bos_token_id")), _listed(pad))
    )
    end = _own_end(ends, tokenizer) if ends else size
    return {
        "pad_id": [*pads, end if ends else 0][0],
        "bos_id": [*begins, end][0],
        "eos_id": end,
        "other_ends": tuple(id for id in ends if id != end),
    }


def _generated(architecture: Architecture, checkpoint: ForeignCheckpoint, name: str) -> Any:
    """What begins or ends an output: where generation has a file of its own, it is said there.

    A decoder whose file does not say an end has none.
    """
    ids = (checkpoint.generation or checkpoint.config).get(name)
    if ids is None and architecture.family != "decoder":
        return checkpoint.config.get(name)
    return ids


def _separators(tokenizer: Tokenizer | None, eos_id: int) -> Values:
    """How many ends an encoder's tokenizer puts between two texts, where it says so itself."""
    if tokenizer is None or tokenizer._backend.post_processor is None:
        return {}
    between = read_frame(tokenizer, {}).between
    return {"pair_separators": len(between)} if {*between} == {eos_id} else {}


def _listed(ids: Any) -> list[int]:
    """One id, several or none."""
    return [int(id) for id in (ids if isinstance(ids, list) else [ids]) if id is not None]


def _own_end(ids: list[int], tokenizer: Tokenizer | None) -> int:
    """Models that chat may have several ends; they mostly say the one that their tokenizer has."""
    known = tokenizer.names.get("end") if tokenizer else None
    return tokenizer.eos_id if tokenizer and known and tokenizer.eos_id in ids else ids[0]


def _embedding(checkpoint: ForeignCheckpoint, model: ModelConfig) -> Values:
    if checkpoint.sentences is None:
        return {"pooling": "mean", "normalize": True}
    embed = dict(checkpoint.sentences.embed)
    if embed.get("max_length", 0) >= model.max_length:
        del embed["max_length"]  # what the model reads anyway
    return embed


def _around(checkpoint: ForeignCheckpoint, tokenizer: Tokenizer | None, usual: Frame) -> Values:
    """The special tokens around the texts of a causal classifier, where they are not the usual.

    Theirs looks at the last token that is no padding, even where that is a token of the frame.
    """
    frame = read_frame(tokenizer, checkpoint.tokenizer) if tokenizer else Frame()
    after = frame.after
    while after and after[-1] == checkpoint.config.get("pad_token_id"):
        after = after[:-1]
    parts = frame.before, frame.between, after
    same = parts == (usual.before, usual.between, usual.after)
    return {} if same else {"frame": [list(part) for part in parts]}


def _begins_with_bos(
    checkpoint: ForeignCheckpoint, tokenizer: Tokenizer | None, bos_id: int
) -> bool:
    """As tokenizer_config.json says or, where there is one, as tokenizer.json does."""
    said = checkpoint.tokenizer.get("add_bos_token")
    if isinstance(said, bool) or tokenizer is None:
        return bool(said)
    backend = tokenizer._backend
    with library_errors(f"{checkpoint.path}: the tokenizer cannot read 'a'", "fetch it again"):
        framed, bare = (backend.encode("a", add_special_tokens=add).ids for add in (True, False))
    return bool(framed != bare and framed[0] == bos_id)


def chat_content(checkpoint: ForeignCheckpoint, tokenizer: Tokenizer, bos: bool) -> Values:
    """Run the chat template, and say it as our config.json does: "chat" and "chat_bos"."""
    variables = {
        "start": "bos_token",
        "end": "eos_token",
        "unknown": "unk_token",
        "padding": "pad_token",
    }
    tokens = {variables[role]: name for role, name in tokenizer.names.items() if role in variables}
    try:
        template, chat_bos = read_chat(checkpoint.chat or "", tokens, tokenizer.special_names)
    except ChatProgramError as error:
        raise ChatTemplateError(
            f"The chat template in {checkpoint.chat_file or checkpoint.path} cannot be used, for "
            f"{error}; name one of ours, such as 'plain', to chat."
        ) from error
    talk = [{"role": "user", "content": "a"}]
    without, begun = (template.prompt(talk, tokenizer, begin) for begin in (False, True))
    content: Values = {"chat": template.to_dict()}
    brings_own = without == begun
    if not brings_own and chat_bos != bos:
        content["chat_bos"] = chat_bos
    extras = checkpoint.config.get(EXTRAS) or {}
    content["chat"] |= extras.get("chat") or {}
    return content | ({"chat_bos": extras["chat_bos"]} if "chat_bos" in extras else {})
