"""The packaged translator: there after installation, by default and by name."""

from __future__ import annotations

import json
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

import qkv as package
from qkv.shelf import folder_size, packaged
from tests.journeys.conftest import Command

FOLDER = packaged()["zh-en"]
ENCODER_FOLDER = packaged()["mini-bert"]
LARGEST = 12_000_000  # bytes that the model may add to an installation


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


def test_its_size_fits_into_a_wheel() -> None:
    assert folder_size(FOLDER) <= LARGEST
    stored = json.loads((FOLDER / "config.json").read_text(encoding="utf-8"))
    assert stored["task"] == "translate"


def test_the_wheel_takes_all_of_its_files() -> None:
    root = Path(__file__).parents[2]
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["qkv"]
    for path in (*FOLDER.iterdir(), *ENCODER_FOLDER.iterdir()):
        name = path.relative_to(FOLDER.parents[1]).as_posix()
        assert any(fnmatch(name, pattern) for pattern in patterns), name


def test_its_card_names_data_licences_and_scores() -> None:
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    for word in ("Tatoeba", "CC-BY 2.0 FR", "3AM", "MIT", "BLEU", "recipes/zh_en.toml"):
        assert word in card


def test_the_packaged_encoder_fills_gaps_without_a_model_being_named(qkv: Command) -> None:
    answer = qkv(
        "fill", "--top-k", "1", "I want to [MASK] a cup of coffee.", "我昨天买了一<mask>书。"
    )
    assert (answer.code, answer.err) == (0, "")
    assert answer.lines == ["I want to have a cup of coffee.", "我昨天买了一本书。"]


def test_the_packaged_encoder_is_loaded_by_its_name_and_small() -> None:
    encoder = package.load("mini-bert", device="cpu")
    assert encoder.fill("I want to <mask> a cup of coffee.").masks[0][0].text == "have"
    assert folder_size(ENCODER_FOLDER) <= 6_000_000
    card = (ENCODER_FOLDER / "README.md").read_text(encoding="utf-8")
    for word in ("Tatoeba", "CC-BY 2.0 FR", "3AM", "MIT", "restored", "recipes/mini_bert.toml"):
        assert word in card
