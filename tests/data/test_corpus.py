import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.config import DataConfig
from qkv.data import Pair, ParallelText, read_parallel
from qkv.data.corpus import _cut_off
from qkv.errors import UserError


def table(path: Path, pairs: list[Pair]) -> str:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
    return str(path)


def numbered(n: int) -> list[Pair]:
    return [(f"s{number}", f"t{number}") for number in range(n)]


def test_given_splits_are_read_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "v.zh").write_text("v\n", encoding="utf-8")
    (tmp_path / "v.en").write_text("w\n", encoding="utf-8")
    config = DataConfig(
        pairs=(table(tmp_path / "train.tsv", numbered(3)),),
        valid_source=(str(tmp_path / "v.zh"),),
        valid_target=(str(tmp_path / "v.en"),),
        test_pairs=(table(tmp_path / "test.tsv", [("x", "y")]),),
    )
    assert read_parallel(config) == ParallelText(numbered(3), [("v", "w")], [("x", "y")])


def test_a_cut_off_split_depends_on_the_seed_alone(tmp_path: Path) -> None:
    config = DataConfig(pairs=(table(tmp_path / "train.tsv", numbered(500)),), valid_size=20)
    text = read_parallel(config, seed=1)
    assert text == read_parallel(config, seed=1)
    assert text.valid != read_parallel(config, seed=2).valid
    assert len(text.valid) == 20
    assert text.test == []


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abcdefghijklmnop"), st.text(max_size=2)), min_size=40),
    st.integers(1, 30),
    st.integers(0, 5),
)
def test_a_cut_off_split_shares_no_source_and_loses_no_pair(
    pairs: list[Pair], size: int, seed: int
) -> None:
    try:
        train, valid = _cut_off(pairs, size, seed)
    except UserError:  # where each source alone is more than a tenth
        return
    assert sorted(train + valid) == sorted(pairs)
    assert not {source for source, _ in train} & {source for source, _ in valid}
    assert 0 < len(valid) <= min(size, len(pairs) / 10)


def test_too_few_pairs_ask_for_validation_text(tmp_path: Path) -> None:
    config = DataConfig(pairs=(table(tmp_path / "train.tsv", numbered(9)),))
    with pytest.raises(UserError, match=r"9 pairs are too few.*valid_source"):
        read_parallel(config)


def test_half_a_validation_split_is_an_error(tmp_path: Path) -> None:
    config = DataConfig(pairs=(table(tmp_path / "a.tsv", numbered(20)),), valid_source=("v.zh",))
    with pytest.raises(UserError, match="valid_source is given without valid_target"):
        read_parallel(config)


def test_the_demo_corpus_is_the_same_for_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(seed: int = 0) -> ParallelText:
        return ParallelText(numbered(seed + 3), numbered(2), numbered(1))

    # In place of the real one, which takes seconds and has tests of its own.
    monkeypatch.setitem(sys.modules, "qkv.demo", SimpleNamespace(demo_corpus=draw))
    assert read_parallel(DataConfig(corpus="demo"), seed=7) == draw(0)


@pytest.mark.parametrize("name", ["source", "valid_target", "test_pairs"])
def test_the_demo_corpus_takes_no_files(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} is given too"):
        read_parallel(replace(DataConfig(corpus="demo"), **{name: ("a.tsv",)}))
