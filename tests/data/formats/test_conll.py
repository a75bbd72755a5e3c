"""Tagged words in columns."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.data.formats.conll import Sentence, read_conll
from tests.data.helpers import complaint, write

EXPECTED = [Sentence(("New", "York", "!"), ("B", "I", "O")), Sentence(("猫",), ("O",))]


@pytest.mark.parametrize(
    "text",
    [
        "New\tB\nYork\tI\n!\tO\n\n猫\tO\n",
        "New\tB\r\nYork\tI\r\n!\tO\r\n\t\r\n  \r\n猫\tO",
        "\n\nNew B\nYork  I\n! O\n \t \n猫 O \n\n\n",
        "-DOCSTART- -X-\n\nNew B\nYork I\n! O\n-DOCSTART- -X-\n猫 O\n",
        "-DOCSTART-\tO\nNew\tB\nYork\tI\n!\tO\n\n# text = 猫 O\n#\n#id 1\n猫\tO\n",
        "# sent_id = 1\nNew B\nYork I\n! O\n\n# text = 猫 .\n猫 O\n",
    ],
)
@pytest.mark.parametrize("name", ["a.conll", "a.txt.gz"])
def test_sentences_are_read_from_columns(tmp_path: Path, text: str, name: str) -> None:
    assert read_conll(write(tmp_path / name, text)) == EXPECTED


def test_files_are_joined_in_order_and_sentences_end_with_them(tmp_path: Path) -> None:
    one, two = write(tmp_path / "1", "New B\nYork I\n! O"), write(tmp_path / "2", "猫\tO")
    assert read_conll([str(one), two]) == EXPECTED


def test_a_hash_may_be_a_word(tmp_path: Path) -> None:
    tabs = "#\tO\n#tag\tO\n# tag\tO\n\n# comment = x\nb\tO\n"
    expected = [Sentence(("#", "#tag", "# tag"), ("O", "O", "O")), Sentence(("b",), ("O",))]
    assert read_conll(write(tmp_path / "a", tabs)) == expected
    spaces = "# O\n#tag O\nb O\n"
    assert read_conll(write(tmp_path / "b", spaces)) == [Sentence(("#", "#tag", "b"), ("O",) * 3)]
    assert read_conll(write(tmp_path / "c", "# O\n")) == [Sentence(("#",), ("O",))]


def test_words_may_hold_spaces(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "10 000 \tB\n10\u00a0000\tO\n\u3000\tO\n")
    assert read_conll(path)[0].words == ("10 000", "10\u00a0000", "\u3000")
    path = write(tmp_path / "b", "10\u00a0000 B\n\u3000x O\n")
    assert read_conll(path)[0].words == ("10\u00a0000", "\u3000x")


def test_columns_are_chosen(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "EU NNP B-NP B-ORG\nrejects VBZ B-VP O\n")
    assert read_conll(path) == [Sentence(("EU", "rejects"), ("B-ORG", "O"))]
    assert read_conll(path, label_column=1)[0].labels == ("NNP", "VBZ")
    assert read_conll(path, -4, -2)[0] == Sentence(("EU", "rejects"), ("B-NP", "B-VP"))


def test_conll_u_is_read_by_its_words(tmp_path: Path) -> None:
    rows = ["1 Er PRON", "2-3 im _", "2 in ADP", "3 dem DET", "3.1 da ADV", "4 1-2 NUM"]
    cells = [row.split() for row in rows]
    lines = ["\t".join([id, word, "_", tag, *"______"]) for id, word, tag in cells]
    path = write(tmp_path / "a.conllu", "# text = Er im Haus\n" + "\n".join(lines) + "\n\n")
    assert read_conll(path, 1, 3) == [
        Sentence(("Er", "in", "dem", "1-2"), ("PRON", "ADP", "DET", "NUM"))
    ]


WORDS = st.text(st.characters(exclude_categories=("Z", "C")), min_size=1).filter(
    lambda word: not word.startswith("-DOCSTART-")
)
SENTENCES = st.lists(
    st.lists(st.tuples(WORDS, st.sampled_from(["O", "B-x", "I-x"])), min_size=1), min_size=1
)


@given(sentences=SENTENCES, gap=st.sampled_from(["\t", " ", "  "]))
@settings(max_examples=100)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, sentences: list[list[tuple[str, str]]], gap: str
) -> None:
    blocks = ["".join(f"{word}{gap}{label}\n" for word, label in one) for one in sentences]
    path = write(tmp_path_factory.mktemp("conll") / "a", "\n".join(blocks))
    found = read_conll(path)
    assert [list(zip(one.words, one.labels, strict=True)) for one in found] == sentences


@pytest.mark.parametrize(
    ("text", "columns", "sentence"),
    [
        ("a O\n\nb\n", (0, -1), "line 3: the number of columns is 1, but 2 in the file's first li"),
        ("a\tO\nb c\tx\tO\n", (0, -1), "line 2: the number of columns is 3, but 2 in the file's "),
        ("a\nb\n", (0, -1), "line 1: there is one column alone; each line must hold a word and "),
        ("a O\n", (0, 2), "label_column 2, which are not two of the 2 columns that there are; set"),
        ("a O\n", (-3, 1), "word_column is -3 and label_column 1, which are not two of the 2 colu"),
        ("a O\n", (1, -1), "line 1: word_column is 1 and label_column -1, which are not two of t"),
        ("a\tO\n\tO\n", (0, -1), "line 2: the word is empty; each line must hold both, and a blan"),
        ("a\tO\nb\t\n", (0, -1), "line 2: the label is empty; each line must hold both"),
        ("\n \t\n", (0, -1), "There is no sentence in "),
        ("-DOCSTART- O\n", (0, -1), "There is no sentence in "),
        ("", (0, -1), "There is no sentence in "),
    ],
)
def test_mistakes_are_located(
    tmp_path: Path, text: str, columns: tuple[int, int], sentence: str
) -> None:
    path = write(tmp_path / "a.conll", text)
    message = complaint(read_conll, path, *columns)
    assert sentence in message and str(path) in message


def test_real_columns_are_read(shared_data: Path) -> None:
    train = read_conll(shared_data / "wnut17" / "train.conll.gz")
    valid = read_conll(shared_data / "wnut17" / "valid.conll")
    assert len(train) == 3394 and len(valid) == 1009
    assert sum(len(one.words) for one in train) == 62730
    assert valid[1].words[:3] == ("You", "should", "'")
    assert valid[1].labels[6:9] == ("B-location", "I-location", "I-location")
    assert any("#" in one.words for one in valid)
