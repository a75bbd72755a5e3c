"""Our tokenizers for others: the files that `transformers.AutoTokenizer` reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from qkv.convert.tokenizers.frame import Frame
from qkv.files import write_json
from qkv.text.tokenizer import ROLE_KEYS, Tokenizer

# By this name transformers takes tokenizer.json as it is, whatever the model. By a model's own
# class, such as BertTokenizer, it would build that model's usual tokenizer with our pieces.
AS_IT_IS = "PreTrainedTokenizerFast"


def write_tokenizer(
    folder: Path,
    tokenizer: Tokenizer,
    frame: Frame,
    max_length: int,
    chat: str | None = None,
    pad_left: bool = False,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Write tokenizer.json and what goes with it; `chat` is a Jinja template of conversations.

    `more` are further settings of tokenizer_config.json.

    A text gets the ids that it has here, within its frame. But there, "<eos>" in a text is the
    special token: chat templates and gaps to fill are written so.
    """
    content = json.loads(tokenizer._backend.to_str())
    content["post_processor"] = _template(tokenizer, frame)
    write_json(folder / "tokenizer.json", content)
    names = _special_tokens(tokenizer, frame)
    types = ["token_type_ids"] if frame.segments else []
    settings = {
        "tokenizer_class": AS_IT_IS,
        **names,
        "model_max_length": max_length,
        "model_input_names": ["input_ids", *types, "attention_mask"],
        "padding_side": "left" if pad_left else "right",
        "clean_up_tokenization_spaces": False,
        **(more or {}),
    }
    if chat is not None:
        settings["chat_template"] = chat
    write_json(folder / "tokenizer_config.json", settings)
    write_json(folder / "special_tokens_map.json", names)


def _special_tokens(tokenizer: Tokenizer, frame: Frame) -> dict[str, str]:
    """The tokens by the field's names; a text between two of them is between CLS and SEP."""
    names = {ROLE_KEYS[role][0]: name for role, name in tokenizer.names.items()}
    if frame.before and frame.after:
        names["cls_token"] = _name(tokenizer, frame.before[0])
        names["sep_token"] = _name(tokenizer, frame.after[-1])
    return names


def _template(tokenizer: Tokenizer, frame: Frame) -> dict[str, Any]:
    """The frame as the `tokenizers` library writes it; an empty one too.

    Where there is none, transformers makes one of its own.
    """
    special = {
        name: {"id": name, "ids": [id], "tokens": [name]}
        for id in (*frame.before, *frame.between, *frame.after)
        for name in (_name(tokenizer, id),)
    }
    second = int(frame.segments)

    def tokens(ids: Iterable[int], type: int = 0) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": _name(tokenizer, id), "type_id": type}} for id in ids]

    def text(letter: str, type: int = 0) -> dict[str, Any]:
        return {"Sequence": {"id": letter, "type_id": type}}

    first = [*tokens(frame.before), text("A")]
    return {
        "type": "TemplateProcessing",
        "single": [*first, *tokens(frame.after)],
        "pair": [*first, *tokens(frame.between), text("B", second), *tokens(frame.after, second)],
        "special_tokens": special,
    }


def _name(tokenizer: Tokenizer, id: int) -> str:
    name = tokenizer._backend.id_to_token(id)
    if name is None:
        raise ValueError(f"the tokenizer has no token {id} to frame a text with")
    return name
