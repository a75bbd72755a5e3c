"""Questions about texts, and their answers, from files in SQuAD's format."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TypeVar, cast

from qkv.data.readers import Paths, listed, read_lines
from qkv.data.table import suffix
from qkv.errors import UserError
from qkv.text.record_template import HALF_CHARACTER

SHAPE = '{"question": "…", "context": "…", "answers": {"text": ["…"], "answer_start": [0]}}'


@dataclass(frozen=True)
class Answer:
    """An answer, and the character of the context that it starts at; -1: it is not in it."""

    text: str
    start: int


@dataclass(frozen=True)
class Question:
    """A question about a text, with all answers that are right; none: the text does not say."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]
    title: str = ""


Located = tuple[str, Question]  # after the file and place that it stands in


def read_squad(paths: Paths, name: str = "", answered: bool = True) -> list[Question]:
    """Read questions; `name` ("", "valid_", "test_") is the setting's prefix in errors.

    A file is SQuAD's JSON (1.1 or 2.0), or holds flat records: a JSON array, or one a line. What
    is only to be asked, not `answered`, need not have answers.
    """
    files = listed(paths)
    if not files:
        raise UserError(f"data: no examples are given; set {name}examples to .json files.")
    found = [located for path in files for located in _read(path, answered)]
    if not found:
        raise UserError(
            f"There is no question in {', '.join(map(str, files))}; give files with at least one."
        )
    return _identified(found)


def _read(path: Path, answered: bool) -> Iterator[Located]:
    for where, value in _values(path):
        if isinstance(value, dict) and "data" in value:
            yield from _articles(value, str(path), answered)
        else:
            yield where, _question(value, _text(value, "context", where), "", where, answered)


def _values(path: Path) -> Iterator[tuple[str, object]]:
    """What a file holds, with places: one value, the items of an array, or a value a line."""
    lines = read_lines(path)
    whole = "\n".join(lines) if suffix(path) != ".jsonl" else ""
    if whole.strip():
        value, end = _parse(whole, str(path))
        if not whole[end:].strip():
            items = value if isinstance(value, list) else [value]
            yield from ((f"{path}, record {number}", item) for number, item in enumerate(items, 1))
            return
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{path}, line {number}"
            value, end = _parse(line, where)
            if line[end:].strip():
                raise _not_json(where)
            yield where, value


def _parse(text: str, where: str) -> tuple[object, int]:
    """Read the JSON value that a text starts with, and say where it ends."""
    try:
        return json.JSONDecoder().raw_decode(text, len(text) - len(text.lstrip()))
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise _not_json(where, f" at line {line}" if line > 1 else "") from error


def _not_json(where: str, place: str = "") -> UserError:
    return UserError(
        f"{where}: this is not valid JSON{place}; a .json file holds one value, and a .jsonl file "
        f"a whole object on each line."
    )


def _articles(value: object, path: str, answered: bool) -> Iterator[Located]:
    for i, article in enumerate(_field(value, "data", list, path)):
        where = f"{path}, data[{i}]"
        paragraphs = _field(article, "paragraphs", list, where)
        title = _title(cast(dict[str, object], article), where)
        for j, paragraph in enumerate(paragraphs):
            inner = f"{where}.paragraphs[{j}]"
            context = _text(paragraph, "context", inner)
            for k, asked in enumerate(_field(paragraph, "qas", list, inner)):
                innermost = f"{inner}.qas[{k}]"
                yield innermost, _question(asked, context, title, innermost, answered)


def _question(value: object, context: str, title: str, where: str, answered: bool) -> Question:
    question = _text(value, "question", where)
    record = cast(dict[str, object], value)
    id = record.get("id")
    if id is not None and not isinstance(id, str | int):
        raise _wrong("id", id, "a string", where)
    unanswerable = record.get("is_impossible") is True
    none = unanswerable or ("answers" not in record and not answered)
    return Question(
        id="" if id is None else str(id),
        question=question,
        context=context,
        answers=() if none else _answers(record, context, where),
        title=title or _title(record, where),
    )


def _title(record: dict[str, object], where: str) -> str:
    return "" if record.get("title") is None else _text(record, "title", where)


def _answers(record: dict[str, object], context: str, where: str) -> tuple[Answer, ...]:
    given = record.get("answers")
    if isinstance(given, dict):  # as Hugging Face's datasets have them: a list of each
        inside = f"{where}, answers"
        texts, starts = (_field(given, name, list, inside) for name in ("text", "answer_start"))
        if len(texts) != len(starts):
            raise UserError(
                f"{inside}: 'text' has {len(texts)} items but 'answer_start' {len(starts)}; each "
                f"answer needs both."
            )
        items: list[object] = [
            {"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)
        ]
    else:
        items = _field(record, "answers", list, where)
    return tuple(_answer(item, context, f"{where}, answers[{n}]") for n, item in enumerate(items))


def _answer(value: object, context: str, where: str) -> Answer:
    text, start = _text(value, "text", where), _field(value, "answer_start", int, where)
    return Answer(text, _nearest(text, context, max(start, 0)) if text.strip() else -1)


def _nearest(text: str, context: str, start: int) -> int:
    """Where a text stands that should stand at `start`: files count bytes, or other spaces."""
    before = context.rfind(text, 0, start + len(text))
    after = context.find(text, start)
    if before < 0 or after < 0:
        return max(before, after)
    return before if start - before <= after - start else after


def _identified(found: Sequence[Located]) -> list[Question]:
    """Check that no two questions have one id, and number those that have none."""
    places: dict[str, str] = {}
    for where, question in found:
        if question.id and question.id in places:
            raise UserError(
                f"{where}: the id {question.id!r} stands at {places[question.id]} too; give each "
                f"question an id of its own."
            )
        places[question.id] = where
    numbers = (str(number) for number in count(1) if str(number) not in places)
    return [
        question if question.id else replace(question, id=next(numbers)) for _, question in found
    ]


def _text(record: object, name: str, where: str) -> str:
    text = _field(record, name, str, where)
    if HALF_CHARACTER.search(text):
        raise UserError(
            f"{where}: {name!r} holds half a surrogate pair (\\ud800 to \\udfff), which is no "
            f"text; correct or delete the question."
        )
    return text


Value = TypeVar("Value", str, int, list[object])
NAMES = {str: "a string", int: "a whole number", list: "a list"}


def _field(record: object, name: str, kind: type[Value], where: str) -> Value:
    if not isinstance(record, dict):
        raise UserError(f"{where}: this is JSON but no object; it must look like {SHAPE}.")
    if name not in record:
        raise UserError(
            f"{where}: there is no {name!r} among {', '.join(map(repr, record)) or 'none'}; the "
            f"file must be in SQuAD's format, or hold records like {SHAPE}."
        )
    value = record[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise _wrong(name, value, NAMES[kind], where)
    return value


def _wrong(name: str, value: object, right: str, where: str) -> UserError:
    shown = json.dumps(value, ensure_ascii=False)[:40]
    return UserError(f"{where}: {name!r} holds {shown}, but must be {right}; correct the file.")
