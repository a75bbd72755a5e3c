"""Conversations from records: instructions with answers, or whole exchanges of messages."""

from __future__ import annotations

from qkv.data.files import Paths, text_files
from qkv.data.formats.records import Record, as_text, quoted, read_records
from qkv.errors import UserError
from qkv.text import Message, check_messages, fill
from qkv.text.record_template import names

QUESTION_OF = {
    "output": "instruction",
    "response": "prompt",
    "completion": "prompt",
    "answer": "question",
}
"""The field of the question that belongs to each field of an answer."""
SHAPES = "'instruction' and 'output', or 'prompt' and 'response', or 'messages'"


def read_conversations(paths: Paths, template: str = "") -> list[list[Message]]:
    """Read conversations from records of any kind of file.

    A record has "messages", or a question and its answer under the names in `QUESTION_OF` with a
    "system" message or an "input" if need be; `template` may say otherwise how to ask.
    """
    return [
        _conversation(record, template)
        for path in text_files(paths)
        for record in read_records(path, [*QUESTION_OF, *names(template)])
    ]


def _conversation(record: Record, template: str) -> list[Message]:
    if "messages" in record.fields:
        return _exchange(record, template)
    answer = next((name for name in QUESTION_OF if name in record.fields), None)
    if answer is None:
        raise UserError(
            f"{record.where}: there is no answer among {quoted(record)}; a record has {SHAPES}."
        )
    system = _optional(record, "system")
    asked = fill(template, record, record.where) if template else _question(record, answer)
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": asked},
        {"role": "assistant", "content": _text(record, answer)},
    ]
    return check_messages(messages if system else messages[1:], record.where)


def _exchange(record: Record, template: str) -> list[Message]:
    if template:
        raise UserError(
            f"{record.where}: a template cannot fill a record with 'messages', which are taken as "
            f"they are; remove template under [data]."
        )
    if not isinstance(record["messages"], list):
        raise UserError(
            f"{record.where}: 'messages' must be a list of objects; correct the record."
        )
    messages = check_messages(record["messages"], record.where)
    if all(message["role"] != "assistant" for message in messages):
        raise UserError(
            f"{record.where}: there is no message of the assistant, so nothing to learn; correct "
            f"or delete the record."
        )
    return messages


def _question(record: Record, answer: str) -> str:
    """Return the instruction (or prompt, or question) and, after a blank line, its input."""
    name = QUESTION_OF[answer]
    if name not in record:
        raise UserError(
            f"{record.where}: there is no field {name!r} to go with {answer!r} among "
            f"{quoted(record)}; add it, or say how to ask by a template under [data], like "
            f"'{{input}}'."
        )
    return "\n\n".join(part for part in (_text(record, name), _optional(record, "input")) if part)


def _optional(record: Record, name: str) -> str:
    return "" if record.get(name) is None else _text(record, name)


def _text(record: Record, name: str) -> str:
    return as_text(record[name], name, record.where)
