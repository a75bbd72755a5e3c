"""`qkv answer`: questions and a text in, the words of the text that answer them out."""

from __future__ import annotations

import json
from collections.abc import Sequence
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
    if input_:
        _answer_file(input_, model, question, n_best, as_json, device, dtype)
        return
    from qkv.data import read_lines

    batches = given_lines(question)
    passage = "\n".join(read_lines(context)) if context else text or ""
    answerer = load_answerer(model, device, dtype)

    def ask(questions: list[str], done: int, advance: Advance | None) -> list[list[Found]]:
        return answerer.answers([(asked, passage) for asked in questions], n_best, advance)

    several = n_best > 1
    show = _as_json if as_json else lambda _, answers, several: _as_text(answers, several)
    answer_lines(batches, ask, lambda asked, answers: show(asked, answers, several))


def load_answerer(folder: str, device: str, dtype: str | None) -> Answerer:
    """Load a model that must find answers."""
    from qkv.tasks import Answerer

    return load_as(folder, device, dtype, Answerer, "model that finds answers")


def _answer_file(
    path: Path,
    model: str,
    question: list[str] | None,
    n_best: int,
    as_json: bool,
    device: str,
    dtype: str | None,
) -> None:
    """Answer a whole file; `--json` is what SQuAD's own script scores: {id: answer}."""
    from qkv.data.formats.squad import read_squad

    if question:
        raise UserError(f"{path} brings its own questions; leave {question[0]!r} out.")
    if as_json and n_best > 1:
        raise UserError("--json with --input gives one answer for each id; leave --n-best out.")
    questions = read_squad([path], answered=False)
    pairs = [(asked.question, asked.context) for asked in questions]
    answerer = load_answerer(model, device, dtype)
    with progress_bar(len(pairs)) as advance:
        found = answerer.answers(pairs, n_best, advance)
    if as_json:
        best = {asked.id: answers[0].text for asked, answers in zip(questions, found, strict=True)}
        print(json.dumps(best, ensure_ascii=False))
        return
    for answers in found:
        print(_as_text(answers, n_best > 1))


def _as_text(answers: Sequence[Found], several: bool) -> str:
    """The answer alone; several as lines of probability and answer."""
    if several:
        return "\n".join(f"{best.probability:.4f}\t{one_line(best.text)}" for best in answers)
    return one_line(answers[0].text)


def _as_json(question: str, answers: Sequence[Found], several: bool) -> str:
    names = ("start", "end", "score", "probability")
    found = [
        {"answer": best.text} | {name: getattr(best, name) for name in names} for best in answers
    ]
    content = {"question": question, **found[0]} | ({"n_best": found} if several else {})
    return json.dumps(content, ensure_ascii=False)
