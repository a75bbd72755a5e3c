"""The packaged translator: there after installation, by default and by name."""

import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

import qkv as package
from qkv.shelf import folder_size, packaged
from tests.journeys.conftest import Command

FOLDER = packaged()["zh-en"]
ENCODER_FOLDER = packaged()["mini-bert"]


def test_it_translates_without_a_model_being_named(qkv: Command) -> None:
    answer = qkv("translate", "我爱你。", "这个汤太咸了。", "")
    assert (answer.code, answer.err) == (0, "")
    assert answer.lines == ["I love you.", "This soup is too salty.", ""]


def test_a_folder_of_the_same_name_is_not_taken_by_default(
    qkv: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "zh-en").mkdir()
    monkeypatch.chdir(tmp_path)
    assert qkv("translate", "我爱你。").lines == ["I love you."]
    assert "zh-en" in qkv("translate", "--model", "zh-en", "我爱你。").mistake


def test_the_wheel_takes_all_of_its_files() -> None:
    root = Path(__file__).parents[2]
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["qkv"]
    for path in (*FOLDER.iterdir(), *ENCODER_FOLDER.iterdir()):
        name = path.relative_to(FOLDER.parents[1]).as_posix()
        assert any(fnmatch(name, pattern) for pattern in patterns), name


@pytest.mark.parametrize(
    ("folder", "most", "words"),
    [
        (FOLDER, 12_000_000, ("BLEU", "recipes/zh_en.toml")),
        (ENCODER_FOLDER, 6_000_000, ("restored", "recipes/mini_bert.toml")),
    ],
)
def test_models_are_small_and_their_cards_name_data_licences_and_scores(
    folder: Path, most: int, words: tuple[str, ...]
) -> None:
    assert folder_size(folder) <= most
    card = (folder / "README.md").read_text(encoding="utf-8")
    for word in ("Tatoeba", "CC-BY 2.0 FR", "3AM", "MIT", *words):
        assert word in card


def test_the_packaged_encoder_fills_gaps_without_a_model_being_named(qkv: Command) -> None:
    answer = qkv(
        "fill", "--top-k", "1", "I want to [MASK] a cup of coffee.", "我昨天买了一<mask>书。"
    )
    assert (answer.code, answer.err) == (0, "")
    assert answer.lines == ["I want to have a cup of coffee.", "我昨天买了一本书。"]


def test_the_packaged_encoder_is_loaded_by_its_name() -> None:
    encoder = package.load("mini-bert", device="cpu")
    assert encoder.fill("I want to <mask> a cup of coffee.").masks[0][0].text == "have"
