"""Conversations from records: instructions with answers, or whole exchanges of messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qkv.data.files import Paths, text_files
from qkv.data.formats.records import Record, as_text, quoted, read_records
from qkv.errors import UserError, shortened
from qkv.text import Message, check_messages, fill
from qkv.text.record_template import names

QUESTION_OF = {
    "output": "instruction",
    "response": "prompt",
    "completion": "prompt",
    "answer": "question",
    "输出": "指令",
    "回答": "问题",
    "答案": "问题",
}
"""The field of the question that belongs to each field of an answer."""
INPUTS = "input", "输入"
SHAPES = "'instruction' and 'output', or 'prompt' and 'response', or 'messages'"
LISTS = "messages", "conversations"
"""The fields that may hold a whole exchange."""
SPEAKERS = {"human": "user", "gpt": "assistant"}
"""Roles by the names that ShareGPT's records give them, as "from" beside "value"."""


def read_conversations(paths: Paths, template: str = "") -> list[list[Message]]:
    """Read conversations from records of any kind of file.

    A record has "messages" (or "conversations", as ShareGPT's), or a question and its answer under
    the names in `QUESTION_OF` with a "system" message or an "input" if need be; `template` may say
    otherwise how to ask. Question and answer may be lists of messages, too.
    """
    return [
        _conversation(record, template)
        for path in text_files(paths)
        for record in read_records(path, [*LISTS, *QUESTION_OF, *names(template)])
    ]


def _conversation(record: Record, template: str) -> list[Message]:
    for name in LISTS:
        if name in record:
            return _exchange(record, name, template)
    answer = next((name for name in QUESTION_OF if name in record), None)
    if answer is None:
        columns = quoted(record)
        if record.layout == "no header":
            columns = f"{quoted(map(shortened, record.fields.values()))}, which are no known header"
        raise UserError(
            f"{record.where}: there is no answer among {columns}; a record has {SHAPES}."
        )
    if not template and isinstance(answered := record[answer], list):
        asked = record.get(QUESTION_OF[answer])
        if isinstance(asked, list):
            return _checked([*asked, *answered], record.where)
    system = _optional(record, "system")
    question = fill(template, record, record.where) if template else _question(record, answer)
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": question},
        {"role": "assistant", "content": _text(record, answer)},
    ]
    return check_messages(messages if system else messages[1:], record.where)


def _exchange(record: Record, name: str, template: str) -> list[Message]:
    if template:
        raise UserError(
            f"{record.where}: a template cannot fill a record with {name!r}, which are taken as "
            f"they are; remove template under [data]."
        )
    listed = record[name]
    if not isinstance(listed, list):
        raise UserError(f"{record.where}: {name!r} must be a list of objects; correct the record.")
    return _checked(listed, record.where)


def _checked(listed: list[Any], where: str) -> list[Message]:
    """Return messages that are a conversation with something to learn."""
    messages = check_messages([_message(message) for message in listed], where)
    if all(message["role"] != "assistant" for message in messages):
        raise UserError(
            f"{where}: there is no message of the assistant, so nothing to learn; correct "
            f"or delete the record."
        )
    return messages


def _message(message: Any) -> Any:
    """Rewrite a message of ShareGPT's form; others are returned as they are."""
    if not isinstance(message, Mapping) or not {"from", "value"} <= message.keys():
        return message
    speaker = message["from"]
    return {"role": SPEAKERS.get(str(speaker), speaker), "content": message["value"]}


def _question(record: Record, answer: str) -> str:
    """Return the instruction (or prompt, or question) and, after a blank line, its input."""
    name = QUESTION_OF[answer]
    if name not in record:
        raise UserError(
            f"{record.where}: there is no field {name!r} to go with {answer!r} among "
            f"{quoted(record)}; add it, or say how to ask by a template under [data], like "
            f"'{{input}}'."
        )
    inputs = [_optional(record, name) for name in INPUTS]
    return "\n\n".join(part for part in (_text(record, name), *inputs) if part)


def _optional(record: Record, name: str) -> str:
    return "" if record.get(name) is None else _text(record, name)


def _text(record: Record, name: str) -> str:
    return as_text(record[name], name, record.where)
