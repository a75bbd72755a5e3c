"""`qkv chat`: a line a turn, from a terminal or a pipe."""

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import qkv as package
from qkv.cli import main
from qkv.tasks import Conversation
from tests.journeys.conftest import Command
from tests.run.language_tiny import questions

LONG = "say " + "3" * 50


def talk(folder: Path, *said: str, system: str = "", **settings: object) -> list[str]:
    """The answers of one conversation."""
    conversation = package.load(folder).conversation(system, tell=lambda _: None, **settings)
    return [conversation.say(line) for line in said]


def test_lines_are_answered_in_turn(qkv: Command, taught: Path) -> None:
    words = ["chat", "--model", taught, "--greedy", "--max-length", 9]
    answer = qkv(*words, stdin="3\n4\n\n  \n")
    assert (answer.code, answer.err) == (0, "")
    assert answer.lines == talk(taught, "3", "4", max_length=9)
    assert answer.lines[0] == "three"
    assert qkv("chat", "--model", taught, stdin="").out == ""


def test_one_can_start_afresh_and_leave(qkv: Command, taught: Path) -> None:
    asked = [question for question, _ in questions()[:4]]
    text = "\n/new\n".join(asked) + "\n /quit \nsay 3\n"
    answer = qkv("chat", "--model", taught, stdin=text)
    assert answer.code == 0
    assert answer.lines == [talk(taught, question)[0] for question in asked]
    right = [word for _, word in questions()[:4]]
    assert sum(one == other for one, other in zip(answer.lines, right, strict=True)) >= 3


def test_what_was_said_before_matters_unless_one_starts_afresh(qkv: Command, taught: Path) -> None:
    goes_on = []
    for seed in range(4):
        hot = ["chat", "--model", taught, "--temperature", 4, "--max-length", 5, "--seed", seed]
        afresh, on = qkv(*hot, stdin="3\n/new\n3").lines, qkv(*hot, stdin="3\n3").lines
        assert afresh[0] == afresh[1] == on[0]
        goes_on.append(on[0] != on[1])
    assert any(goes_on)


def test_json_is_an_object_an_answer(qkv: Command, taught: Path) -> None:
    words = ["chat", "--model", taught, "--json", "--system", "a"]
    answer = qkv(*words, stdin="\ufeffsay 3\r\n我 4\r\n")
    found = [json.loads(line) for line in answer.lines]
    assert [each["message"] for each in found] == ["say 3", "我 4"]
    assert [each["answer"] for each in found] == talk(taught, "say 3", "我 4", system="a")
    assert "我" in answer.out


@pytest.mark.parametrize("as_json", [False, True])
def test_a_program_gets_each_answer_s_line_before_it_asks_again(
    taught: Path, as_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, before = io.BytesIO(), []

    class Asking(io.BytesIO):
        def read1(self, size: int | None = -1) -> bytes:
            before.append(pipe.getvalue())
            return self.readline(size)

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Asking(b"say 3\nsay 4\n")))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(pipe))
    words = ["qkv", "chat", "--model", str(taught)] + ["--json"] * as_json
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit):
        main()
    assert [answers.count(b"\n") for answers in before] == [0, 1, 2]


def test_what_must_be_forgotten_is_told_apart_from_the_answers(qkv: Command, taught: Path) -> None:
    answer = qkv("chat", "--model", taught, "--max-length", 9, stdin="say 3\n" * 4)
    assert answer.code == 0
    assert len(answer.lines) == 4
    assert "· the conversation has outgrown the model's context of 64 tokens" in answer.err


def test_a_message_that_is_too_long_ends_a_pipe_but_not_a_talk(qkv: Command, taught: Path) -> None:
    text = f"say 3\n{LONG}\nsay 4\n"
    words = ["chat", "--model", taught, "--max-length", 9]
    answer = qkv(*words, stdin=text)
    assert (answer.code, answer.lines) == (2, ["three"])
    assert answer.err.startswith("qkv: This message makes a prompt of ")
    assert "Traceback" not in answer.err
    answer = qkv(*words, stdin=text, typed=True)
    assert answer.code == 0
    assert answer.lines == talk(taught, "say 3", "say 4", max_length=9)
    assert "· This message makes a prompt of " in answer.err
    assert answer.err.count("> ") == 4  # a sign before each line, and one at the end


def test_an_interrupted_answer_does_not_end_a_talk(
    qkv: Command, taught: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Conversation.stream

    def impatient(self: Conversation, content: str) -> Iterator[str]:
        if content == "say 3":
            raise KeyboardInterrupt
        return plain(self, content)

    monkeypatch.setattr(Conversation, "stream", impatient)
    words = ["chat", "--model", taught, "--max-length", 9]
    assert qkv(*words, stdin="say 3\nsay 4\n").code == 130
    answer = qkv(*words, stdin="say 3\nsay 4\n", typed=True)
    assert (answer.code, answer.lines) == (0, ["", *talk(taught, "say 4", max_length=9)])


def test_a_model_that_was_never_taught(qkv: Command, speaker: Path, model: Path) -> None:
    mistake = qkv("chat", "--model", speaker, stdin="say 3\n").mistake
    assert mistake.startswith("This model was never taught to answer")
    words = ["chat", "--model", speaker, "--greedy", "--max-length", 9]
    answer = qkv(*words, "--template", "plain", stdin="the\n")
    settings = {"sample": False, "beams": 1, "max_length": 9}
    assert answer.lines == talk(speaker, "the", template="plain", **settings)
    assert "Unknown chat template 'loud'" in qkv(*words, "--template", "loud").mistake
    assert "no special token '<|im_" in qkv(*words, "--template", "chatml").mistake
    assert "is a translation model and no language model" in qkv("chat", "--model", model).mistake


def test_mistakes_are_named(qkv: Command, taught: Path) -> None:
    mistake = qkv("chat", "--model", taught, "--greedy", "--top-p", 0.5).mistake
    assert "--top-p is about random draws, which --greedy rules out" in mistake
    answer = qkv("chat", "--model", taught, stdin=b"say 3\nsay \xe4\xb8\n")
    assert (answer.code, answer.lines) == (2, ["three"])
    assert answer.err == (
        "qkv: standard input, line 2: byte 5 of the line (0xe4) is not UTF-8; convert it first, "
        "with `iconv -f ENCODING -t UTF-8` (often GB18030, or CP1252).\n"
    )
