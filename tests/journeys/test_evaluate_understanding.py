"""`qkv evaluate` for models that label, tag, answer and embed: scores, tables, pictures, files."""

import dataclasses
import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import qkv as package
from qkv.evaluation.classification import ClassReport
from qkv.tasks.reading import save_encoder
from tests.journeys.conftest import Command
from tests.run import classify_tiny, fill_tiny, language_tiny, tag_tiny, test_answer, tiny
from tests.run.common import write_lines
from tests.run.language_tiny import write_questions
from tests.run.prefer_tiny import write_preferences
from tests.run.tiny import sources, spell
from tests.tasks.understand_tiny import TOKENIZER, encoder


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """Of a task that the model has learnt, but some labels are wrong."""
    rows = classify_tiny.one_of_three(60, seed=8)
    wrong = [(text, "metal" if n % 6 == 0 else label) for n, (text, label) in enumerate(rows)]
    return classify_tiny.write_rows(tmp_path / "examples.tsv", wrong)


def test_a_classifier_s_scores_report_confusions_and_trust(
    qkv: Command, classifier: Path, examples: Path
) -> None:
    expected = package.evaluate(package.load(classifier), examples)
    assert 70 < expected.scores[0].value < 95
    answer = qkv("evaluate", "--model", classifier, "--examples", examples)
    assert (answer.code, answer.err) == (0, "")
    scores = "\n".join(map(str, expected.scores))
    report, trust = expected.report, expected.calibration
    assert isinstance(report, ClassReport) and trust is not None
    assert answer.out == (
        f"{scores}\n\n{report.table()}\n\n{report.matrix()}\n\nIt {trust.describe()}.\n"
    )


def test_everything_for_machines(qkv: Command, classifier: Path, examples: Path) -> None:
    expected = package.evaluate(package.load(classifier), examples)
    assert isinstance(expected.report, ClassReport) and expected.report.confusion is not None
    assert expected.calibration is not None
    found = json.loads(qkv("evaluate", "--model", classifier, "--examples", examples, "--json").out)
    for score in expected.scores:
        assert found.pop(score.name) == dataclasses.asdict(score)
    assert found.keys() == {"classes", "means", "confusion", "calibration"}
    labels = ["animal", "metal", "plant"]
    assert list(found["classes"]) == found["confusion"]["labels"] == labels
    assert found["classes"]["metal"] == dataclasses.asdict(expected.report.classes[1])
    assert found["means"].keys() == {"macro", "weighted"}
    assert found["confusion"]["matrix"] == expected.report.confusion.tolist()
    assert sum(map(sum, found["confusion"]["matrix"])) == 60
    assert sum(part["count"] for part in found["calibration"]["bins"]) == 60
    assert found["calibration"] == json.loads(json.dumps(dataclasses.asdict(expected.calibration)))


def test_pictures_go_into_a_folder_or_beside_each_other(
    qkv: Command, classifier: Path, examples: Path, tmp_path: Path
) -> None:
    words = ["evaluate", "--model", classifier, "--examples", examples, "--picture"]
    plain = qkv(*words[:-1]).out
    assert qkv(*words, tmp_path / "new" / "folder").out == plain
    names = sorted(path.name for path in (tmp_path / "new" / "folder").iterdir())
    assert names == ["confusion.png", "reliability.png"]
    qkv(*words, tmp_path / "found.svg")
    for name, text in (("found.svg", "metal"), ("found-reliability.svg", "confidence")):
        content = (tmp_path / name).read_text()
        assert content.startswith("<?xml")
        assert text in content


def test_predictions_are_lines_as_classify_prints_them(
    qkv: Command, classifier: Path, examples: Path, tmp_path: Path
) -> None:
    words = ["evaluate", "--model", classifier, "--examples", examples]
    assert qkv(*words, "--output", tmp_path / "found.txt").out == qkv(*words).out
    printed = qkv("classify", "--model", classifier, "--input", examples).out
    assert (tmp_path / "found.txt").read_text() == printed
    assert printed.count("\n") == 60


def test_fields_are_those_of_the_recipe_or_as_told(qkv: Command, tmp_path: Path) -> None:
    """A run on a table with more columns is scored on such a table without further ado."""
    fields = {"data_label_field": "kind", "data_text_fields": ["said"], "train_steps": 2}
    for name in ("train", "valid"):
        rows = classify_tiny.one_of_three(60)
        lines = [f"{n}\t{text}\t{label}" for n, (text, label) in enumerate(rows)]
        (tmp_path / f"class.{name}.tsv").write_text("\n".join(["n\tsaid\tkind", *lines]))
    folder = classify_tiny.run(tmp_path, **fields).folder
    words = ["evaluate", "--model", folder, "--examples"]
    expected = qkv(*words, tmp_path / "class.valid.tsv")
    in_python = package.evaluate(package.load(folder), tmp_path / "class.valid.tsv")
    assert expected.out == f"{in_python}\n"
    plain = classify_tiny.write_rows(tmp_path / "plain.tsv", rows)
    assert "no field 'said' among" in qkv(*words, plain).mistake
    told = ["--label-field", "label", "--text-field", "text"]
    assert qkv(*words, plain, *told).out == expected.out
    (folder / "recipe.toml").unlink()  # a model folder needs none
    assert qkv(*words, plain).out == expected.out


@pytest.fixture
def gaps(tmp_path: Path) -> Path:
    """A folder of an encoder that fills gaps, badly."""
    folder = tmp_path / "gaps"
    save_encoder(folder, "fill", encoder(head="masked").float(), TOKENIZER)
    return folder


def test_masked_tokens_are_scored_as_the_run_did(
    qkv: Command, tmp_path_factory: pytest.TempPathFactory
) -> None:
    done = fill_tiny.learned(tmp_path_factory, "order")
    words = ["evaluate", "--model", done.folder, "--text", done.folder.parent / "test.txt"]
    assert qkv(*words).lines == list(map(str, done.scores["test"]))
    names = ["loss", "perplexity", "accuracy", "pair accuracy"]
    assert [*json.loads(qkv(*words, "--json").out)] == names
    hidden = done.folder / "recipe.toml"
    hidden.rename(done.folder / "other.toml")  # a model folder needs none
    try:
        assert [line.rpartition(" ")[0] for line in qkv(*words).lines] == names[:3]
    finally:
        (done.folder / "other.toml").rename(hidden)


def test_a_task_without_scores_names_those_that_have_some(
    qkv: Command, gaps: Path, tmp_path: Path
) -> None:
    config = json.loads((gaps / "config.json").read_text())
    (gaps / "config.json").write_text(json.dumps({**config, "task": "denoise"}))
    assert qkv("evaluate", "--model", gaps, "--text", tmp_path / "a").mistake.endswith(
        "which is not scored here; models that can be are of the tasks translate, generate, "
        "classify, tag, answer, embed, fill."
    )


def test_wrong_combinations_are_explained(
    qkv: Command, classifier: Path, examples: Path, model: Path, gaps: Path, tmp_path: Path
) -> None:
    def ask(*words: object, folder: Path = classifier) -> str:
        return qkv("evaluate", "--model", folder, *words).mistake

    assert ask() == f"{classifier} is a classifier; give what it is scored on as --examples."
    for option in ("--text", "--source", "--target", "--template", "--option", "--pool"):
        assert ask("--examples", examples, option, "x") == (
            f"{option} has no effect here: {classifier} is a classifier; leave it out, and use "
            f"--examples, --label-field, --text-field, --picture, --output."
        )
    assert "--shots has no effect here" in ask("--examples", examples, "--shots", 2)
    assert "--picture has no effect here: a file is scored; leave it out" in (
        qkv("evaluate", "--hypotheses", examples, "--target", examples, "--picture", "x").mistake
    )
    translated = ["--source", examples, "--target", examples]
    for option in ("--picture", "--label-field"):
        assert f"{option} has no effect here: {model} is a translation model" in ask(
            *translated, option, "x", folder=model
        )
    assert "--examples has no effect here" in ask("--examples", examples, folder=gaps)
    assert ask(folder=gaps) == (
        f"{gaps} is an encoder; give the text whose tokens are masked and predicted as --text."
    )
    assert "There is no file" in ask("--examples", tmp_path / "none.tsv")
    other = classify_tiny.write_rows(tmp_path / "other.tsv", [("tin", "tin"), ("a cat", "animal")])
    assert "the label 'tin', which the model does not know; its labels are animal" in ask(
        "--examples", other
    )


def test_options_are_named_where_they_are_at_hand(
    qkv: Command,
    classifier: Path,
    examples: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    def ask(*words: object, folder: Path = classifier, of: Path = examples) -> str:
        return qkv("evaluate", "--model", folder, "--examples", of, *words).mistake

    assert ask("--label-field", "kind").endswith("name the right one as --label-field.")
    assert ask("--text-field", "review").endswith("name the right one as --text-field.")
    tagger = tag_tiny.learned(tmp_path_factory).folder
    assert f"--label-field has no effect here: {tagger} is a tagger" in ask(
        "--label-field", "ner", folder=tagger
    )
    assert ask("--output", tmp_path) == f"{tmp_path} is a directory; name the file to write in it."
    assert "name a folder, or a .png or .svg file" in ask("--picture", tmp_path / "all.pdf")


def scored(kind: str, folder: Path, factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    """A model of each kind, and files for it to be scored on."""
    if kind == "translations":
        write_lines(folder / "source", lines := sources(30, seed=11))
        write_lines(folder / "target", map(spell, lines))
        return tiny.learned(factory).folder, [folder / "source", folder / "target"]
    if kind == "texts":  # longer than the context; a last line end counts too
        long = "\r\n".join([*language_tiny.sentences(20, seed=6), ""])
        for name, text in (("a.txt", long), ("b.txt", "我爱你猫")):
            (folder / name).write_bytes(text.encode())
        return language_tiny.learned(factory).folder, [folder / "a.txt", folder / "b.txt"]
    if kind in ("records", "preferences"):
        write = write_questions if kind == "records" else write_preferences
        write(folder / "a.jsonl", language_tiny.questions()[:20])
        return language_tiny.learned(factory, "instruct").folder, [folder / "a.jsonl"]
    if kind in ("classes", "number"):
        model = classify_tiny.learned(factory, kind).folder
        return model, [model.parent / f"{kind}.test.tsv"]
    if kind == "entities":
        path = tag_tiny.write_conll(folder / "test.conll", tag_tiny.sentences(30, seed=9))
        return tag_tiny.learned(factory).folder, [path]
    if kind == "words":
        for name, seed in (("train", 1), ("valid", 2)):
            tag_tiny.write_conll(folder / f"{name}.conll", tag_tiny.parts_of_speech(40, seed))
        return tag_tiny.run(folder, train_steps=4).folder, [folder / "valid.conll"]
    if kind == "answers":
        path = test_answer.write_questions(folder / "test.json", 12, seed=7)
        return test_answer.learned(factory).folder, [path]
    model = folder / "embedder"
    save_encoder(model, "embed", encoder(head="none").float(), TOKENIZER, embed={})
    lines = ["source\ttarget", "the cat\tthe cat", "a dog\ta dog", "no fish\tno fish"]
    return model, [write_lines(folder / "pairs.tsv", lines)]


OPTIONS = {
    "translations": ["--source", "--target"],
    "texts": ["--text", "--text"],
    "records": ["--records"],
    "preferences": ["--records"],
}
MORE = {
    "classes": {"classes", "means"},
    "entities": {"types", "whole"},
    "words": {"classes", "means"},
}
ONLY_EXAMPLES = ("classes", "number", "entities", "words", "answers")


@pytest.mark.parametrize("kind", [*OPTIONS, *ONLY_EXAMPLES, "vectors"])
def test_every_model_is_scored_as_in_python(
    qkv: Command, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, kind: str
) -> None:
    folder, files = scored(kind, tmp_path, tmp_path_factory)
    given: Any = files[0] if len(files) == 1 else tuple(files)
    expected = package.evaluate(package.load(folder), given)
    options = OPTIONS.get(kind, ["--examples"])
    words = ["evaluate", "--model", folder, *chain(*zip(options, files, strict=True))]
    assert qkv(*words).out == f"{expected}\n"
    found = json.loads(qkv(*words, "--json").out)
    assert found.keys() == {score.name for score in expected.scores} | MORE.get(kind, set())
    for score in expected.scores:
        assert found[score.name] == dataclasses.asdict(score)
    mistake = qkv(*words, "--picture", tmp_path / "pictures").mistake
    assert "leave --picture out" in mistake or "--picture has no effect here" in mistake
    if kind not in ("translations", *ONLY_EXAMPLES):
        assert "--output has no effect" in qkv(*words, "--output", tmp_path / "x").mistake
        return
    assert qkv(*words, "--output", tmp_path / "found.txt").out == f"{expected}\n"
    assert len((tmp_path / "found.txt").read_text().splitlines()) == len(expected.outputs)
