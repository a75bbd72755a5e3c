"""What every command that answers lines has in common."""

import errno
import gzip
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qkv.cli.common import stdin_lines
from qkv.tasks import Answerer, Encoder, LanguageModel, Prompting, Tagger, Translator, load
from qkv.tasks.answer import Answers
from qkv.tasks.tag import Tags
from qkv.text.chat import TEMPLATES
from tests.journeys.conftest import Command
from tests.tasks.test_encoder import build, tokenizer
from tests.tasks.test_texts import speaker, translator
from tests.tasks.understand_tiny import TOKENIZER, classifier, encoder


def save_speaker(folder: Path) -> None:
    model = speaker()
    model.prompting = Prompting(chat_template=TEMPLATES["plain"])
    model.save(folder)


SAVE: dict[str, Callable[[Path], None]] = {
    "translate": lambda folder: translator().save(folder),
    "generate": save_speaker,
    "fill": lambda folder: build(tokenizer()).save(folder),
    "embed": lambda folder: Encoder(encoder(head="none").float(), TOKENIZER).save(folder),
    "classify": lambda folder: classifier().save(folder),
    "tag": lambda folder: Tagger(
        encoder(head="token", n_labels=2), TOKENIZER, Tags(("O", "B-x"))
    ).save(folder),
    "answer": lambda folder: Answerer(encoder(head="token", n_labels=2), TOKENIZER, Answers()).save(
        folder
    ),
}
MORE: dict[str, list[str]] = {"answer": ["--text", "the cat sees a dog"]}
FILES = ("translate", "generate", "fill", "embed", "classify", "tag")  # commands with --input


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model for each command, none of which has learnt anything."""
    folder = tmp_path_factory.mktemp("models")
    for name, save in SAVE.items():
        (folder / name).mkdir()
        save(folder / name)
    return {name: folder / name for name in SAVE}


def lines_for(name: str) -> list[str]:
    return ["the <mask>", "a <mask>"] if name == "fill" else ["the cat", "a dog"]


@pytest.mark.parametrize("name", SAVE)
def test_arguments_lines_and_files_are_answered_alike(
    qkv: Command,
    folders: dict[str, Path],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = [name, "--model", folders[name], *MORE.get(name, [])]
    first, second = lines_for(name)
    answer = qkv(*words, first, second)
    assert (answer.code, answer.err) == (0, "")
    content = f"\ufeff{first}\r\n{second}"
    assert qkv(*words, stdin=content).out == answer.out
    assert qkv(*words, stdin="").out == ""
    for form in (["--json"], ["--top-k", 1] if name == "fill" else []):
        before, blank, after = qkv(*words, *form, stdin=f"{first}\n \n{second}\n").lines
        assert [before, after] == qkv(*words, *form, first, second).lines
        assert form == ["--json"] or name in ("generate", "embed") or not blank.strip()
    monkeypatch.chdir(tmp_path)
    Path(first).touch()
    answer_of_name = qkv(*words, first, second)
    assert answer_of_name.out == answer.out
    assert answer_of_name.err.startswith(f"· {first} is taken as a text, but is a file too")
    assert answer_of_name.err.endswith(f"< {first}\n")
    if name in FILES:
        (tmp_path / "a.txt.gz").write_bytes(gzip.compress(content.encode()))
        assert qkv(*words, "--input", tmp_path / "a.txt.gz").out == answer.out
        mistake = qkv(*words, second, "--input", tmp_path / "a.txt.gz").mistake
        assert mistake.startswith("Texts are given both as arguments and as --input")
        assert "There is no file" in qkv(*words, "--input", tmp_path / "none.txt").mistake


# A number that depends on every token of a text: from the command's JSON, and from Python.
SCORES: dict[str, tuple[Callable[[Any], Any], Callable[[Any, str], Any]]] = {
    "translate": (lambda out: out["score"], lambda model, text: model.n_best([text])[0][0].score),
    "generate": (
        lambda out: out["log_probability"],
        lambda model, text: model.n_best([text])[0][0].log_probability,
    ),
    "fill": (
        lambda out: out["masks"][0][0]["probability"],
        lambda model, text: model.fill(text).masks[0][0].probability,
    ),
    "embed": (lambda out: out["embedding"], lambda model, text: model.embed(text).tolist()),
    "classify": (
        lambda out: out["probabilities"],
        lambda model, text: model.classify(text).probabilities,
    ),
    "answer": (
        lambda out: out["score"],
        lambda model, text: model.answer(text, MORE["answer"][1]).score,
    ),
}


@pytest.mark.parametrize("name", SCORES)
def test_a_text_is_the_same_on_the_command_line_and_in_python(
    qkv: Command, folders: dict[str, Path], name: str
) -> None:
    """Spaces around it are tokens of a character or byte-level tokenizer."""
    text = f"  {lines_for(name)[0]} \t"
    printed, score = SCORES[name]
    model = load(folders[name])
    expected = pytest.approx(score(model, text))
    words = [name, "--model", folders[name], *MORE.get(name, []), "--json"]
    assert printed(json.loads(qkv(*words, text).out)) == expected
    assert printed(json.loads(qkv(*words, stdin=f"{text}\r\n").out)) == expected
    assert score(model, text.strip()) != expected


DRAWS = {"max_length": 9, "temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "seed": 4}
WHOLE, FLAGS = {"truncate": False, "first": 0}, {"truncate": True, "sample": True}
PENALTY = {"repetition_penalty": 1.2, "stop": ("on",)}
# The verb behind a command, what it is given in any case, and settings beside those of draws
SEARCH: dict[str, tuple[type, str, dict[str, Any], dict[str, Any]]] = {
    "translate": (
        Translator,
        "n_best",
        {"prefix": "", "progress": None, **WHOLE},
        {"beams": 2, "length_penalty": 0.5, "n_best": 2, "prefix": "on", **FLAGS},
    ),
    "generate": (LanguageModel, "stream", WHOLE, {**PENALTY, "truncate": True}),
    "chat": (LanguageModel, "conversation", {}, PENALTY),
}


@pytest.mark.parametrize("name", SEARCH)
def test_settings_reach_the_search(
    qkv: Command, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    kind, verb, usual, more = SEARCH[name]
    seen: dict[str, Any] = {}

    def note(model: Any, *texts: Any, **settings: Any) -> Any:
        seen.clear()
        seen.update(settings)
        return iter([[]] if verb == "n_best" else ())

    monkeypatch.setattr(kind, verb, note)
    words = [name, "--model", folders["generate" if name == "chat" else name]]
    words += ["1"] if name != "chat" else []
    qkv(*words)
    assert seen == usual  # the folder's own settings
    given = {**DRAWS, **more}
    for key, value in given.items():
        values = value if isinstance(value, tuple) else () if value is True else (value,)
        words += [f"--{key.replace('_', '-')}", *values]
    qkv(*words)
    assert seen == {**usual, **given, "sample": True}


@pytest.mark.parametrize("name", ["translate", "generate"])
def test_an_over_long_text_is_refused_by_its_number_or_cut(
    qkv: Command, folders: dict[str, Path], name: str
) -> None:
    words = [name, "--model", folders[name], "the", "the cat " * 9]
    mistake = qkv(*words).mistake
    assert "Text 2 has" in mistake and "--truncate" in mistake
    assert qkv(*words, "--truncate").code == 0


@pytest.mark.parametrize("name", SAVE)
def test_weights_in_8_bits_are_stored_and_loaded_by_every_command(
    qkv: Command, folders: dict[str, Path], name: str, tmp_path: Path
) -> None:
    written = qkv("convert", folders[name], tmp_path / "int8", "--dtype", "int8")
    assert (written.code, written.err) == (0, "")
    words = [*MORE.get(name, []), "--json", *lines_for(name)]
    stored = qkv(name, "--model", tmp_path / "int8", *words)
    assert (stored.code, stored.err) == (0, "")
    assert qkv(name, "--model", folders[name], "--dtype", "int8", *words).out == stored.out
    mistake = qkv(name, "--model", folders[name], "--dtype", "int3", *words).mistake
    assert mistake == "Unknown dtype 'int3'; it may be one of fp32, bf16, int8, int4."


@pytest.mark.parametrize("name", SAVE)
def test_mistakes_are_named(
    qkv: Command, folders: dict[str, Path], name: str, tmp_path: Path
) -> None:
    words = [name, "--model", folders[name], *MORE.get(name, [])]
    mistake = qkv(*words, stdin=b"the <mask>\n\xff\n").mistake
    assert "standard input, line 2: byte 1 of the line (0xff) is not UTF-8" in mistake
    assert "Text 2 holds bytes that are not UTF-8" in qkv(*words, "the <mask>", "\udce9").mistake

    def with_model(folder: Path) -> str:
        return qkv(name, "--model", folder, *MORE.get(name, []), "a").mistake

    other = "tag" if name == "translate" else "translate"
    mistake = with_model(folders[other])
    assert mistake.startswith(f"{folders[other]} is ")
    assert mistake.endswith(f"; use it with `qkv {other}`.")
    assert "is not a model folder" in with_model(tmp_path)
    assert "is neither a path that exists" in with_model(tmp_path / "none")
    assert "Unknown device 'gpu'" in qkv(*words, "--device", "gpu", "the <mask>").mistake


def test_a_slow_pipe_is_answered_as_its_lines_come(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        batches = stdin_lines()
        found: list[list[str]] = []
        for content, expected in ((b"one\ntwo\nthr", ["one", "two"]), (b"ee\n", ["three"])):
            os.write(writing, content)
            thread = threading.Thread(target=lambda: found.append(next(batches)), daemon=True)
            thread.start()
            thread.join(60)
            assert found and found[-1] == expected
        os.write(writing, b"\nlast")
        os.close(writing)
        assert [line for lines in batches for line in lines] == ["", "last"]


@pytest.mark.parametrize("name", ["generate", "chat"])
def test_a_seed_alone_draws_nothing(qkv: Command, folders: dict[str, Path], name: str) -> None:
    model = folders["generate"]
    mistake = qkv(name, "--model", model, "--seed", 1, *(["a"] if name == "generate" else []))
    assert mistake.mistake == (
        f"--seed has no effect, because {model} decodes without random draws; add "
        f"--temperature 1 to draw, or leave --seed out."
    )


def complete(monkeypatch: pytest.MonkeyPatch, qkv: Command, *words: str) -> list[str]:
    """What a shell is told when Tab is pressed."""
    monkeypatch.setenv("_QKV_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", " ".join(["qkv", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    return qkv().lines


def test_the_shell_completes_commands_models_and_folders(
    qkv: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "shelf" / "models" / "mini").mkdir(parents=True)
    monkeypatch.setenv("QKV_HOME", str(tmp_path / "shelf"))
    (tmp_path / "here" / "runs" / "minor").mkdir(parents=True)
    (tmp_path / "here" / "minilm.gguf").touch()
    (tmp_path / "here" / "mine.txt").touch()
    monkeypatch.chdir(tmp_path / "here")
    assert complete(monkeypatch, qkv, "trans") == ["translate"]
    names = ["mini-bert", "mini", "minilm.gguf"]  # packaged, pulled, here
    assert complete(monkeypatch, qkv, "tag", "--model", "mi") == names
    assert complete(monkeypatch, qkv, "tag", "--model", "runs/") == ["runs/minor/"]
    monkeypatch.undo()
    assert "--install-completion" in qkv("-h").out


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (errno.EFBIG, "larger than this system allows (x.npy); raise the limit (`ulimit -f`)"),
        (errno.EACCES, "Permission is denied (x.npy); choose another place"),
        (errno.EISDIR, "there is a directory (x.npy); name a file in it"),
        (errno.EROFS, "can only be read (x.npy); write to another place"),
        (errno.ENOSPC, "The disk is full (x.npy); free some space"),
        (errno.ETIMEDOUT, "Connection timed out (x.npy); check the path"),
    ],
)
def test_errors_of_the_system_name_a_way_out(
    qkv: Command,
    folders: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    sentence: str,
) -> None:
    def fail(*arguments: object, **more: object) -> None:
        raise OSError(number, os.strerror(number), "x.npy")

    monkeypatch.setattr("qkv.cli.embed.write_array", fail)
    words = ["embed", "--model", folders["embed"], "--output", "x.npy", "a"]
    assert sentence in qkv(*words).mistake
