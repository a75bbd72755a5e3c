"""`qkv evaluate`: scores that others can compare with."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import sacrebleu

import qkv as package
from qkv.tasks import LanguageModel
from qkv.tasks.few_shot import FewShot
from tests.journeys.conftest import Command
from tests.run.common import write_lines, write_records
from tests.run.language_tiny import ANIMALS, sentences
from tests.run.tiny import sources, spell

LINES = sources(30, seed=11, longest=6)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    write_lines(tmp_path / "source", LINES)
    write_lines(tmp_path / "target", map(spell, LINES))
    return tmp_path


def given(text: Path, model: Path) -> list[object]:
    return ["evaluate", "--model", model, "--source", text / "source", "--target", text / "target"]


def test_a_model_is_scored_with_a_signature(qkv: Command, model: Path, text: Path) -> None:
    found = package.load(model).translate(LINES)
    expected = sacrebleu.corpus_bleu(found, [[spell(line) for line in LINES]])
    answer = qkv(*given(text, model))
    assert answer.code == 0
    assert answer.lines[0] == (
        f"BLEU {expected.score:.2f}  "
        f"(nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__})"
    )
    assert 10 < expected.score < 100
    assert answer.lines[1].startswith("chrF ")
    assert answer.lines[2].startswith("exact match ")


def test_pairs_of_one_file_are_scored_as_two_files(qkv: Command, model: Path, text: Path) -> None:
    rows = [f"{number},{line},{spell(line)}" for number, line in enumerate(LINES)]
    table = write_lines(text / "both.csv", ["id,digits,words", *rows])
    found = ["evaluate", "--model", model, "--pairs", table]
    fields = ["--source-field", "digits", "--target-field", "words"]
    assert qkv(*found, *fields).lines == qkv(*given(text, model)).lines
    assert "name the two sides as --source-field and --target-field" in qkv(*found).mistake
    assert "--source has no effect here" in qkv(*given(text, model), "--pairs", table).mistake
    assert "--source-field has no effect here" in qkv(*given(text, model), *fields).mistake


@pytest.mark.parametrize("known", [False, True])
def test_a_document_is_what_it_was_in_the_run(
    qkv: Command, speaker: Path, tmp_path: Path, known: bool
) -> None:
    """A line here, or else a file; of a table a record."""
    lines = sentences(20, seed=6)
    file = write_lines(tmp_path / "a.txt", lines)
    texts = lines if known else [file.read_text(encoding="utf-8")]
    if not known:
        speaker = shutil.copytree(speaker, tmp_path / "alone")
        (speaker / "recipe.toml").unlink()
    words: list[object] = ["evaluate", "--model", speaker, "--text"]
    expected = f"{package.evaluate(package.load(speaker), texts)}\n"
    assert qkv(*words, file).out == expected
    assert f"{package.evaluate(package.load(speaker), file)}\n" == expected
    table = write_records(tmp_path / "a.v2.jsonl", *({"n": 1, "said": text} for text in texts))
    assert "name one as --text-field" in qkv(*words, table).mistake
    assert qkv(*words, table, "--text-field", "said").out == expected


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_quantised_weights_are_scored_against_floats(
    qkv: Command, model: Path, text: Path, dtype: str
) -> None:
    floats, scores = (
        json.loads(qkv(*given(text, model), "--json", "--dtype", kind).out)
        for kind in ("fp32", dtype)
    )
    for name in ("BLEU", "chrF", "exact match"):
        difference = scores[name]["value"] - floats[name]["value"]
        assert scores[f"{name} against fp32"]["value"] == pytest.approx(difference)
    assert "BLEU against fp32" not in floats


def test_the_translations_can_be_kept_and_scored_again(
    qkv: Command, model: Path, text: Path
) -> None:
    first = qkv(*given(text, model), "--output", text / "found")
    assert (text / "found").read_text().splitlines() == package.load(model).translate(LINES)
    again = qkv("evaluate", "--hypotheses", text / "found", "--target", text / "target")
    assert again.out == first.out


def test_search_and_tokenizer_can_be_chosen(qkv: Command, model: Path, text: Path) -> None:
    qkv(*given(text, model), "--beams", 1, "--output", text / "found")
    greedy = package.load(model).translate(LINES, beams=1)
    assert (text / "found").read_text().splitlines() == greedy
    answer = qkv(*given(text, model), "--tokenize", "char")
    assert "tok:char" in answer.out


def test_sources_over_the_limit_are_cut(qkv: Command, model: Path, tmp_path: Path) -> None:
    (tmp_path / "a").write_text(" ".join("1" * 60) + "\n\n2\n")
    (tmp_path / "b").write_text("one\n\ntwo\n")
    answer = qkv(
        "evaluate", "--model", model, "--source", tmp_path / "a", "--target", tmp_path / "b"
    )
    assert answer.code == 0


def test_mistakes_are_named(qkv: Command, model: Path, text: Path) -> None:
    target = text / "target"
    assert "--hypotheses" in qkv("evaluate", "--target", target).mistake
    assert "give the text to translate as --source" in (
        qkv("evaluate", "--target", target, "--model", model).mistake
    )
    (text / "short").write_text("one\n")
    answer = qkv("evaluate", "--hypotheses", text / "short", "--target", target)
    assert f"{text / 'short'} has 1 lines but {target} has 30" in answer.mistake
    short = ["--source", text / "short", "--target", target]
    assert "has 1 lines but" in qkv("evaluate", "--model", model, *short).mistake
    (text / "empty").write_text("")
    empty = ["--hypotheses", text / "empty", "--target", text / "empty"]
    assert f"There is no text in {text / 'empty'}" in qkv("evaluate", *empty).mistake
    assert "13a" in qkv(*given(text, model), "--tokenize", "13b").mistake
    assert "There is no file" in qkv("evaluate", "--target", "x", "--hypotheses", target).mistake


def test_choices_among_options_after_solved_examples(
    qkv: Command, speaker: Path, tmp_path: Path
) -> None:
    def records(path: Path, lines: list[str]) -> list[dict[str, str]]:
        cut = [line.split(". ")[0].rstrip(".").rsplit(" ", 1) for line in lines]
        found = [{"text": text, "label": label} for text, label in cut]
        write_records(path, *found)
        return found

    asked = records(tmp_path / "asked.jsonl", sentences(12, seed=8))
    pool = records(tmp_path / "pool.jsonl", sentences(60, seed=9))
    files = ["--examples", tmp_path / "asked.jsonl", "--pool", tmp_path / "pool.jsonl"]
    words = ["evaluate", "--model", speaker, *files, "--template", "{text}"]
    words += [word for animal in ANIMALS for word in ("--option", animal)]
    few_shot = FewShot("{text}", " {label}", options=tuple(ANIMALS))
    model = package.load(speaker)
    for shots, normalize in ((2, "none"), (0, "bytes")):
        expected = package.evaluate(
            model, asked, few_shot=few_shot, pool=pool, shots=shots, seed=3, normalize=normalize
        )
        answer = qkv(*words, "--shots", shots, "--seed", 3, "--normalize", normalize)
        assert answer.out == f"{expected}\n"
    scores = json.loads(qkv(*words, "--shots", 2, "--json").out)
    assert scores.keys() == {"accuracy", "always the commonest"}


def test_a_question_may_have_lines(
    qkv: Command, speaker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    r"""In a shell, "\n" is what one writes."""
    write_lines(tmp_path / "a.tsv", ["text\tlabel", "the cat\tgood", "a dog\tbad"])
    prompts: list[str] = []
    answers: list[Sequence[str]] = []
    plain = LanguageModel.choose

    def noting(self, given, options, normalize):  # type: ignore[no-untyped-def]
        prompts.extend(given)
        answers.extend(options)
        return plain(self, given, options, normalize)

    monkeypatch.setattr(LanguageModel, "choose", noting)
    options = ["--option", "good", "--option", "bad", "--template", r"It: {text}\nSo:"]
    options += ["--answer", r"\n{label}"]
    answer = qkv("evaluate", "--model", speaker, "--examples", tmp_path / "a.tsv", *options)
    assert answer.code == 0
    assert prompts == ["It: the cat\nSo:", "It: a dog\nSo:"]
    assert answers == 2 * [["\ngood", "\nbad"]]


def test_mistakes_about_language_models_are_named(
    qkv: Command, speaker: Path, model: Path, tmp_path: Path
) -> None:
    def ask(*words: object, folder: Path = speaker) -> str:
        return qkv("evaluate", "--model", folder, *words).mistake

    path = write_records(tmp_path / "a.jsonl", {"text": "a", "label": "b"})
    examples = ["--examples", path, "--template", "{text}"]
    both = ["--option", "b", "--option", "c"]
    assert "Give the --model" in qkv("evaluate", "--text", path).mistake
    assert f"--text has no effect here: {model} is a translation model" in ask(
        "--text", path, folder=model
    )
    assert "There is no file" in ask("--text", tmp_path / "none")
    (tmp_path / "empty").write_text("")
    assert "There is no text in" in ask("--text", tmp_path / "empty")
    for other in ("--records", "--examples"):
        assert "one of --text, --records and --examples at a time" in ask(
            "--text", path, other, path
        )
    assert "--text has no effect here: a file is scored" in ask(
        "--text", path, "--hypotheses", path
    )
    for option in ("--output", "--picture", "--label-field", "--source"):
        assert ask("--text", path, option, tmp_path / "x").startswith(
            f"{option} has no effect here: {speaker} is a language model; leave it out, and use "
        )
    assert "scored on --text; leave it out" in ask("--text", path, "--shots", 2)
    assert "Give the question as --template" in ask("--examples", path, *both)
    assert "give it as --pool" in ask(*examples, *both, "--shots", 2)
    assert "--normalize is 'words'" in ask(*examples, *both, "--normalize", "words")
    assert "Give the possible answers" in ask(*examples)
