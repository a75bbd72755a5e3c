"""Conversations from files: instructions with answers, or whole exchanges of messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from qkv.config import DataConfig
from qkv.data.corpus import draw_keys
from qkv.data.readers import Paths, listed, read_lines
from qkv.errors import UserError
from qkv.text import Message, check_messages, fill

QUESTION_OF = {
    "output": "instruction",
    "response": "prompt",
    "completion": "prompt",
    "answer": "question",
}
"""The field of the question that belongs to each field of an answer."""
SHAPES = "'instruction' and 'output', or 'prompt' and 'response', or 'messages'"


@dataclass(frozen=True)
class Conversations:
    """Conversations in their three uses; `test` may be empty."""

    train: list[list[Message]]
    valid: list[list[Message]]
    test: list[list[Message]]


def read_conversations(config: DataConfig, seed: int = 0) -> Conversations:
    """Read the records that `config` names, and cut a validation split off where it names none."""
    train = read_records(config.records, config.template)
    if config.valid_records:
        valid = read_records(config.valid_records, config.template, "valid_")
    else:
        train, valid = _cut_off(train, config.valid_size, seed)
    tested = config.test_records
    return Conversations(
        train, valid, read_records(tested, config.template, "test_") if tested else []
    )


def read_records(paths: Paths, template: str = "", name: str = "") -> list[list[Message]]:
    """Read conversations; `name` ("", "valid_", "test_") is the setting's prefix in errors.

    A record has "messages", or a question and its answer under the names in `QUESTION_OF` with a
    "system" message or an "input" if need be; `template` may say otherwise how to ask.
    """
    files = listed(paths)
    if not files:
        raise UserError(f"data: no records are given; set {name}records to .jsonl or .json files.")
    found = [
        _conversation(record, template, where) for path in files for where, record in _read(path)
    ]
    if not found:
        raise UserError(
            f"There is no record in {', '.join(map(str, files))}; give files with at least one."
        )
    return found


def _read(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """The records of a file, each with its place: one a line, or the items of a JSON array."""
    lines = read_lines(path)
    kind = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    whole = "\n".join(lines) if kind == ".json" else ""
    items: Iterable[tuple[str, object]]
    if whole.lstrip().startswith("["):
        values = cast(list[object], _parse(whole, str(path)))
        items = ((f"{path}, record {number}", value) for number, value in enumerate(values, 1))
    else:
        places = ((f"{path}, line {number}", line) for number, line in enumerate(lines, 1))
        items = ((where, _parse(line, where)) for where, line in places if line.strip())
    for where, value in items:
        if not isinstance(value, dict):
            raise UserError(f"{where}: this is JSON but no object; a record has {SHAPES}.")
        yield where, value


def _parse(text: str, where: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        place = f" at line {line}" if line > 1 else ""
        raise UserError(
            f"{where}: this is not valid JSON{place}; a .jsonl file holds one whole object on each "
            f"line, and a .json file those or an array of objects."
        ) from error


def _conversation(record: Mapping[str, object], template: str, where: str) -> list[Message]:
    if "messages" in record:
        return _exchange(record["messages"], template, where)
    answer = next((name for name in QUESTION_OF if name in record), None)
    if answer is None:
        raise UserError(
            f"{where}: there is no answer among {_names(record)}; a record has {SHAPES}."
        )
    said = {
        "system": _optional(record, "system", where),
        "user": fill(template, record, where) if template else _question(record, answer, where),
        "assistant": _string(record, answer, where),
    }
    messages = [{"role": role, "content": content} for role, content in said.items()]
    return check_messages(messages if said["system"] else messages[1:], where)


def _exchange(messages: object, template: str, where: str) -> list[Message]:
    if template:
        raise UserError(
            f"{where}: a template cannot fill a record with 'messages', which are taken as they "
            f"are; remove template under [data]."
        )
    if not isinstance(messages, list):
        raise UserError(f"{where}: 'messages' must be a list of objects; correct the record.")
    checked = check_messages(messages, where)
    if all(message["role"] != "assistant" for message in checked):
        raise UserError(
            f"{where}: there is no message of the assistant, so nothing to learn; correct or "
            f"delete the record."
        )
    return checked


def _question(record: Mapping[str, object], answer: str, where: str) -> str:
    """The instruction (or prompt, or question) and, after a blank line, what it is about."""
    name = QUESTION_OF[answer]
    if name not in record:
        raise UserError(
            f"{where}: there is no field {name!r} to go with {answer!r} among {_names(record)}; "
            f"add it, or say how to ask by a template under [data], like '{{input}}'."
        )
    asked = _string(record, name, where), _optional(record, "input", where)
    return "\n\n".join(part for part in asked if part)


def _optional(record: Mapping[str, object], name: str, where: str) -> str:
    return "" if record.get(name) is None else _string(record, name, where)


def _string(record: Mapping[str, object], name: str, where: str) -> str:
    value = record[name]
    if not isinstance(value, str):
        raise UserError(
            f"{where}: field {name!r} holds {json.dumps(value)[:40]}, but must be a string; "
            f"correct the record."
        )
    return value


def _names(record: Mapping[str, object]) -> str:
    return ", ".join(map(repr, record)) or "none"


def _cut_off(
    conversations: list[list[Message]], size: int, seed: int
) -> tuple[list[list[Message]], list[list[Message]]]:
    """Part into training and validation, all that begin with one question on the same side.

    What is validated with and trained on as well measures memory.
    """
    asked = [(_first_question(messages), messages) for messages in conversations]
    size = min(size, len(asked) // 10)
    held_out = draw_keys([question for question, _ in asked], size, seed)
    if not held_out:
        raise UserError(
            f"data: {len(asked)} records are too few, or too alike, to cut a tenth off for "
            f"validation; give valid_records."
        )
    train = [messages for question, messages in asked if question not in held_out]
    return train, [messages for question, messages in asked if question in held_out]


def _first_question(messages: list[Message]) -> str:
    return next(message["content"] for message in messages if message["role"] == "user")
