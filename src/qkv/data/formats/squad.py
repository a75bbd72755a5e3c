"""Questions about texts, and their answers, in SQuAD's format or as flat records."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TypeVar

from qkv.data.files import Paths, text_files
from qkv.data.formats.records import as_text, quoted, read_records
from qkv.errors import UserError, shown

FLAT = ("question", "context")  # columns that tables of questions have
WHOLE = re.compile(r"-?\d{1,18}", re.ASCII)
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


def read_squad(paths: Paths, answered: bool = True) -> list[Question]:
    """Read questions from SQuAD's JSON (1.1 or 2.0), or from flat records of any kind of file.

    A flat record has "question", "context" and "answers", or one "answer" with or without its
    "answer_start", as columns of a table have it; a blank one says that there is none.
    Questions that are only to be asked, not `answered`, need no answers. Those without an id get
    a number.
    """
    places: dict[str, str] = {}
    questions: list[Question] = []
    for path in text_files(paths):
        before = len(questions)
        for where, question in _read(path, answered):
            if question.id and question.id in places:
                raise UserError(
                    f"{where}: the id {question.id!r} is used at {places[question.id]} too; give "
                    f"each question an id of its own."
                )
            places[question.id] = where
            questions.append(question)
        if len(questions) == before:
            raise UserError(f"There is no question in {path}; give a file with at least one.")
    numbers = (str(number) for number in count(1) if str(number) not in places)
    return [asked if asked.id else replace(asked, id=next(numbers)) for asked in questions]


def _read(path: Path, answered: bool) -> Iterator[tuple[str, Question]]:
    for record in read_records(path, FLAT):
        if "data" not in record:
            context = _text(record, "context", record.where)
            yield record.where, _question(record, context, "", record.where, answered)
            continue
        for i, article in enumerate(_field(record, "data", list, str(path))):
            where = f"{path}, data[{i}]"
            paragraphs = _field(article, "paragraphs", list, where)
            title = _title(article, where)
            for j, paragraph in enumerate(paragraphs):
                inner = f"{where}.paragraphs[{j}]"
                context = _text(paragraph, "context", inner)
                for k, asked in enumerate(_field(paragraph, "qas", list, inner)):
                    innermost = f"{inner}.qas[{k}]"
                    yield innermost, _question(asked, context, title, innermost, answered)


def _question(value: object, context: str, title: str, where: str, answered: bool) -> Question:
    question = _text(value, "question", where)
    assert isinstance(value, Mapping)  # which `_text` has made sure of
    id = value.get("id")
    if id is not None and not isinstance(id, str | int):
        raise _wrong("id", id, "a string", where)
    is_given = "answers" in value or "answer" in value
    has_none = value.get("is_impossible") is True or (not is_given and not answered)
    return Question(
        id="" if id is None else str(id),
        question=question,
        context=context,
        answers=() if has_none else _answers(value, context, where),
        title=title or _title(value, where),
    )


def _title(value: object, where: str) -> str:
    has_title = isinstance(value, Mapping) and value.get("title") is not None
    return _text(value, "title", where) if has_title else ""


def _answers(value: Mapping[str, object], context: str, where: str) -> tuple[Answer, ...]:
    if "answers" not in value and "answer" in value:  # a column of a table
        return _only_answer(value, context, where)
    answers = value.get("answers")
    if isinstance(answers, dict):  # as Hugging Face's datasets have them: a list of each
        inside = f"{where}, answers"
        texts, starts = (_field(answers, name, list, inside) for name in ("text", "answer_start"))
        if len(texts) != len(starts):
            raise UserError(
                f"{inside}: 'text' has {len(texts)} items but 'answer_start' {len(starts)}; each "
                f"answer needs both."
            )
        items: list[object] = [
            {"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)
        ]
    else:
        items = _field(value, "answers", list, where)
    return tuple(_answer(item, context, f"{where}, answers[{n}]") for n, item in enumerate(items))


def _only_answer(value: Mapping[str, object], context: str, where: str) -> tuple[Answer, ...]:
    """Return the "answer" of a row; without "answer_start" it is where it first occurs."""
    given = {name: field for name, field in value.items() if field is not None}  # an empty cell
    text = _text(given, "answer", where) if "answer" in given else ""
    start = given.get("answer_start", 0)
    if isinstance(start, str):  # a cell
        start = int(start) if WHOLE.fullmatch(start.strip()) else start.strip() or 0
    if not text.strip():
        return ()
    return (_answer({"text": text, "answer_start": start}, context, where),)


def _answer(value: object, context: str, where: str) -> Answer:
    text, start = _text(value, "text", where), _field(value, "answer_start", int, where)
    return Answer(text, _nearest(text, context, max(start, 0)) if text.strip() else -1)


def _nearest(text: str, context: str, start: int) -> int:
    """Find the occurrence nearest to `start`: some files count bytes, or spaces otherwise."""
    before = context.rfind(text, 0, start + len(text))
    after = context.find(text, start)
    if before < 0 or after < 0:
        return max(before, after)
    return before if start - before <= after - start else after


Value = TypeVar("Value", str, int, list[object])
NAMES = {str: "a string", int: "a whole number", list: "a list"}


def _text(value: object, name: str, where: str) -> str:
    return as_text(_field(value, name, str, where), name, where)


def _field(record: object, name: str, kind: type[Value], where: str) -> Value:
    if not isinstance(record, Mapping):
        raise UserError(f"{where}: this is JSON but no object; it must look like {SHAPE}.")
    if name not in record:
        raise UserError(
            f"{where}: there is no {name!r} among {quoted(record)}; the file must be in SQuAD's "
            f"format, or hold records like {SHAPE}."
        )
    value = record[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise _wrong(name, value, NAMES[kind], where)
    return value


def _wrong(name: str, value: object, right: str, where: str) -> UserError:
    return UserError(
        f"{where}: {name!r} holds {shown(value)}, but must be {right}; correct the file."
    )
