"""`qkv classify`, from training to labels: texts in, a line for each out."""

import json
from pathlib import Path

import pytest
from PIL import Image

import qkv as package
from tests.journeys.conftest import Command
from tests.run.classify_tiny import learned, one_of_three, write_recipe, write_rows
from tests.run.test_vision import run as run_on_images

TEXTS = ["the dog was there", "so on with a rose", "iron"]
LABELS = ["animal", "plant", "metal"]


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that gives any number of classes."""
    return learned(tmp_path_factory, "classes").folder


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that gives a number."""
    return learned(tmp_path_factory, "number").folder


def test_a_label_and_its_probability_a_line(qkv: Command, classifier: Path) -> None:
    expected = package.load(classifier).classify(TEXTS)
    answer = qkv("classify", "--model", classifier, *TEXTS)
    assert (answer.code, answer.err) == (0, "")
    lines = [f"{one.label}\t{one.probability:.3f}" for one in expected]
    assert answer.lines == lines
    assert [one.label for one in expected] == LABELS


def test_texts_of_files_of_every_kind(qkv: Command, classifier: Path, tmp_path: Path) -> None:
    expected = qkv("classify", "--model", classifier, *TEXTS).out
    (tmp_path / "a.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    write_rows(tmp_path / "a.tsv", [(text, "whatever") for text in TEXTS])
    (tmp_path / "a.csv").write_text("text\n" + "".join(f'"{text}"\n' for text in TEXTS))
    objects = [json.dumps({"n": 1, "said": text}) for text in TEXTS]
    (tmp_path / "a.jsonl").write_text("\n".join(objects))
    for name in ("a.txt", "a.tsv", "a.csv", "a.jsonl"):
        more = ["--text-field", "said"] if name == "a.jsonl" else []
        answer = qkv("classify", "--model", classifier, "--input", tmp_path / name, *more)
        assert answer.out == expected, name


def test_pairs_have_a_tab_between(
    qkv: Command, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    done = learned(tmp_path_factory, "pairs")
    answer = qkv("classify", "--model", done.folder, "the cat\ta dog", "a dog \t the cat")
    assert [line.split("\t")[0] for line in answer.lines] == ["first", "second"]
    path = write_rows(tmp_path / "pairs.tsv", [("a dog", "the cat", "x"), ("cat", "dog", "x")])
    answer = qkv("classify", "--model", done.folder, "--input", path)
    assert [line.split("\t")[0] for line in answer.lines] == ["second", "first"]
    both = ["--text-field", "second", "--text-field", "first"]
    answer = qkv("classify", "--model", done.folder, "--input", path, *both)
    assert [line.split("\t")[0] for line in answer.lines] == ["first", "second"]
    found = json.loads(qkv("classify", "--model", done.folder, "the cat\ta dog", "--json").out)
    assert found["texts"] == ["the cat", "a dog"]
    assert found["label"] == "first"


def test_all_labels_the_likeliest_first(qkv: Command, classifier: Path) -> None:
    chances = package.load(classifier).classify("the dog was there").probabilities
    cells = (
        qkv("classify", "--model", classifier, "the dog was there", "--all").lines[0].split("\t")
    )
    assert cells[0] == "animal"
    assert sorted(cells[::2]) == ["animal", "metal", "plant"]
    assert cells[1::2] == [f"{chances[label]:.3f}" for label in cells[::2]]
    assert cells[1::2] == sorted(cells[1::2], reverse=True)


def test_several_classes_at_once(qkv: Command, several: Path) -> None:
    text = "the rose and the iron"
    [line] = qkv("classify", "--model", several, text).lines
    found = package.load(several).classify(text)
    labels, chances = line.split("\t")
    assert set(labels.split("|")) == {"iron", "rose"}
    assert chances == "|".join(f"{found.probabilities[one]:.3f}" for one in found.labels)
    assert qkv("classify", "--model", several, "there was one").lines == ["\t"]
    [line] = qkv("classify", "--model", several, text, "--threshold", 0).lines
    assert len(line.split("\t")[0].split("|")) == 3
    assert qkv("classify", "--model", several, text, "--threshold", 1).lines == ["\t"]
    said = json.loads(qkv("classify", "--model", several, text, "--json").out)
    assert said == {
        "text": text,
        "labels": list(found.labels),
        "probabilities": pytest.approx(found.probabilities),
    }


def test_numbers(qkv: Command, counting: Path) -> None:
    lines = qkv("classify", "--model", counting, "the one", "cat cat was cat").lines
    assert [float(line) for line in lines] == pytest.approx([50, 80], abs=5)
    found = json.loads(qkv("classify", "--model", counting, "the one", "--json").out)
    assert found == {"text": "the one", "value": pytest.approx(float(lines[0]), rel=1e-4)}


def test_labels_for_machines(qkv: Command, classifier: Path) -> None:
    answer = qkv("classify", "--model", classifier, "--json", stdin="iron\n\nthe 猫 rose\n")
    first, blank, last = map(json.loads, answer.lines)
    assert first.keys() == {"text", "label", "probability", "probabilities"}
    assert first["label"] == "metal"
    assert first["probability"] == first["probabilities"]["metal"]
    assert sum(first["probabilities"].values()) == pytest.approx(1)
    assert blank == {"text": "", "label": None, "probability": None, "probabilities": {}}
    assert last["text"] == "the 猫 rose"
    assert "猫" in answer.out


def test_mistakes_are_named(qkv: Command, classifier: Path, several: Path, counting: Path) -> None:
    def ask(*words: object, folder: Path = classifier) -> str:
        return qkv("classify", "--model", folder, *words).mistake

    assert "--text-field names a column of a table" in ask("one", "--text-field", "text")
    assert "Text 2 holds 2 texts with tabs between; give one text, or a table as --input" in ask(
        "one", "a\tb"
    )
    assert "gives the one likeliest class; --threshold is for several" in ask(
        "one", "--threshold", 0.3
    )
    assert "gives a number; --threshold is for" in ask("one", "--threshold", 0, folder=counting)
    assert "--threshold is 1.5, but must be" in ask("one", "--threshold", 1.5, folder=several)
    assert "gives a number and has no labels" in ask("one", "--all", folder=counting)


def test_half_of_a_pair_may_be_missing(
    qkv: Command, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = learned(tmp_path_factory, "pairs").folder
    answer = qkv("classify", "--model", folder, "--json", stdin="the cat\t\n\n\ta dog\n")
    found = [json.loads(line) for line in answer.lines]
    assert [one.get("texts", one.get("text")) for one in found] == [
        ["the cat", ""],
        "",
        ["", "a dog"],
    ]
    mistake = qkv("classify", "--model", folder, "a\tb", "a\tb\tc").mistake
    assert "Text 2 holds 3 texts with tabs between; give one text, or a pair, or a table" in mistake
    mistake = qkv("classify", "--model", folder, "the cat").mistake
    assert "has learnt to label pairs of texts alone" in mistake


def test_tables_are_read_as_in_training(qkv: Command, tmp_path: Path) -> None:
    rows = [(str(n), text, label) for n, (text, label) in enumerate(one_of_three(60))]
    lines = [",".join(row) for row in (("title", "review", "kind"), *rows)]
    (tmp_path / "reviews.csv").write_text("\n".join(lines))
    changes = [f"data.examples={tmp_path}/reviews.csv", "data.valid_examples=[]"]
    changes += ["data.label_field=kind", "train.steps=2"]
    words = [word for change in changes for word in ("--set", change)]
    recipe = write_recipe(tmp_path)
    noticed = "each example is a pair of texts"
    assert noticed in qkv("train", recipe, "--out", tmp_path / "pairs", *words).err
    words += ["--set", "data.text_field=review"]
    done = qkv("train", recipe, "--out", tmp_path / "texts", *words)
    assert done.code == 0
    assert noticed not in done.err

    new = tmp_path / "new.csv"
    new.write_text('title,review,kind\n1,"a cat, a dog",\n2,,\n3,iron,\n')
    ask = ["classify", "--model", tmp_path / "texts", "--input", new, "--json"]
    texts = [json.loads(line)["text"] for line in qkv(*ask).lines]
    assert texts == ["a cat, a dog", "", "iron"]
    mistake = qkv(*ask, "--text-field", "revew").mistake
    assert "there is no column 'revew'" in mistake


def test_columns_that_are_no_texts_are_not_read_as_pairs(
    qkv: Command, classifier: Path, tmp_path: Path
) -> None:
    path = tmp_path / "new.csv"
    path.write_text("source,target\n1,a cat\n")
    mistake = qkv("classify", "--model", classifier, "--input", path).mistake
    assert mistake == (
        f"{path} has 2 columns beside the label, but {classifier} labels single texts; name "
        f"the columns by --text-field."
    )


def test_images_keep_their_places(qkv: Command, tmp_path: Path) -> None:
    folder = run_on_images(tmp_path, train_steps=2).folder
    Image.new("L", (9, 5)).save(tmp_path / "a.png")
    answer = qkv("classify", "--model", folder, stdin=f"\n{tmp_path}/a.png\r\n \n")
    assert [bool(line) for line in answer.lines] == [False, True, False]
    mistake = qkv("classify", "--model", folder, "--text-field", "x", tmp_path / "a.png").mistake
    assert "--text-field names a column of a table; leave it out" in mistake
