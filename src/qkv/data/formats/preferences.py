"""Preferences from records: a prompt, the answer that is chosen, and the one that is rejected."""

from __future__ import annotations

from typing import NamedTuple

from qkv.data.files import Paths, text_files
from qkv.data.formats.records import Record, as_text, quoted, read_records
from qkv.errors import UserError
from qkv.text import Message, check_messages

FIELDS = ("prompt", "chosen", "rejected")


class Preference(NamedTuple):
    """Two conversations that differ in the last answer alone."""

    chosen: list[Message]
    rejected: list[Message]


def read_preferences(paths: Paths) -> list[Preference]:
    """Read preferences from records of any kind of file.

    "chosen" and "rejected" are texts or messages, after a "prompt" that is a text or messages too;
    without a prompt, both are whole conversations. A "system" message may stand beside them.
    """
    return [
        _preference(record) for path in text_files(paths) for record in read_records(path, FIELDS)
    ]


def hold_preferences(paths: Paths) -> bool:
    """Whether the first record of files has a chosen and a rejected answer."""
    first = (record for path in text_files(paths) for record in read_records(path, FIELDS))
    record = next(first, None)
    return record is not None and all(name in record.fields for name in FIELDS[1:])


def _preference(record: Record) -> Preference:
    for name in FIELDS[1:]:
        if record.get(name) is None:
            raise UserError(
                f"{record.where}: there is no {name!r} among {quoted(record)}; a record has "
                f"'prompt', 'chosen' and 'rejected'."
            )
    before = _messages(record, "system", "system") + _messages(record, "prompt", "user")
    chosen, rejected = (
        check_messages([*before, *_messages(record, name, "assistant")], record.where)
        for name in FIELDS[1:]
    )
    for name, messages in (("chosen", chosen), ("rejected", rejected)):
        if messages[-1]["role"] != "assistant":
            raise UserError(
                f"{record.where}: {name!r} must end with what the assistant says; correct the "
                f"record."
            )
    if chosen[:-1] != rejected[:-1]:
        raise UserError(
            f"{record.where}: 'chosen' and 'rejected' must answer one conversation, but they "
            f"differ before the last message; correct the record."
        )
    if chosen == rejected:
        raise UserError(
            f"{record.where}: 'chosen' and 'rejected' are the same, so nothing is preferred; "
            f"correct or delete the record."
        )
    return Preference(chosen, rejected)


def _messages(record: Record, name: str, role: str) -> list[dict[str, object]]:
    value = record.get(name)
    if value is None:
        return []
    if isinstance(value, list):
        return value
    return [{"role": role, "content": as_text(value, name, record.where)}]
