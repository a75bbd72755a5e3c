"""`qkv answer`: questions and a text in, the words of the text that answer them out."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli import options
from qkv.cli.common import Advance, answer_lines, given_lines, load_as, one_line, progress_bar
from qkv.errors import UserError

if TYPE_CHECKING:
    from qkv.tasks import Answerer, Found


def answer(
    question: Annotated[
        list[str] | None, typer.Argument(help="Questions; none: lines of standard input.")
    ] = None,
    *,
    model: options.Model,
    context: Annotated[
        Path | None, typer.Option(help="A file with the text that holds the answers.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="Instead: the text itself.")] = None,
    input_: Annotated[
        Path | None,
        typer.Option("--input", help="Instead: questions and texts in SQuAD's form (.json)."),
    ] = None,
    n_best: Annotated[int, typer.Option(help="Answers for each question.")] = 1,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="One JSON object a question; with --input, one of ids and answers."
        ),
    ] = False,
    device: options.Device = "auto",
    dtype: options.Dtype = None,
) -> None:
    """Find the answers to questions in a text.

    An answer a line; a blank one where there is none.

    \b
    Example: qkv answer --model runs/xquad_en --context article.txt "Who wrote it?"
    Example: qkv answer --model runs/cmrc2018 --text "我们三月去了北京。" 什么时候去的？ --n-best 3
    Example: qkv answer --model runs/xquad_en --input dev.json --json > predictions.json
    """
    if sum(given is not None for given in (context, text, input_)) != 1:
        raise UserError(
            "Give the text to look in as --context FILE or as --text, or a file of questions and "
            "texts as --input; one of the three."
        )
    from qkv.data import read_lines
    from qkv.tasks import Answerer

    load = partial(load_as, model, device, dtype, Answerer, "model that finds answers")
    if input_:
        _answer_file(load, input_, question, n_best, as_json)
        return
    passage = "\n".join(read_lines(context)) if context else text or ""
    answerer = load()

    def ask(questions: list[str], done: int, advance: Advance | None) -> list[list[Found]]:
        return answerer.answers([(asked, passage) for asked in questions], n_best, advance)

    show = partial(_as_json if as_json else _as_text, n_best > 1)
    answer_lines(given_lines(question), ask, show)


def _answer_file(
    load: Callable[[], Answerer], path: Path, question: list[str] | None, n_best: int, as_json: bool
) -> None:
    """Answer a whole file; `--json` is what SQuAD's own script scores: {id: answer}."""
    from qkv.data import read_squad

    if question:
        raise UserError(f"{path} brings its own questions; leave {question[0]!r} out.")
    if as_json and n_best > 1:
        raise UserError("--json with --input gives one answer for each id; leave --n-best out.")
    questions = read_squad([path], answered=False)
    pairs = [(asked.question, asked.context) for asked in questions]
    answerer = load()
    with progress_bar(len(pairs)) as advance:
        found = answerer.answers(pairs, n_best, advance)
    if as_json:
        best = {asked.id: answers[0].text for asked, answers in zip(questions, found, strict=True)}
        print(json.dumps(best, ensure_ascii=False))
        return
    for asked, answers in zip(questions, found, strict=True):
        print(_as_text(n_best > 1, asked.question, answers))


def _as_text(several: bool, question: str, answers: Sequence[Found]) -> str:
    """The answer alone; several as lines of probability and answer."""
    if several:
        return "\n".join(f"{best.probability:.4f}\t{one_line(best.text)}" for best in answers)
    return one_line(answers[0].text)


def _as_json(several: bool, question: str, answers: Sequence[Found]) -> str:
    names = ("start", "end", "score", "probability")
    found = [
        {"answer": best.text} | {name: getattr(best, name) for name in names} for best in answers
    ]
    content = {"question": question, **found[0]} | ({"n_best": found} if several else {})
    return json.dumps(content, ensure_ascii=False)
