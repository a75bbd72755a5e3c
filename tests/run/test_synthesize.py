"""Back-translation and distillation: pairs that a model makes, whole files, and going on."""

import json
from pathlib import Path
from typing import Any

import pytest

import qkv
from qkv.config import recipe_from
from qkv.errors import UserError
from qkv.run import synthesize
from qkv.run.synthesize import translate_to_pairs
from qkv.tasks import Translator
from tests.run.common import Killed, everything, read_log, silence, write_lines
from tests.run.tiny import LEARNS, RUNS, learned, recipe, run, sources, spell


def pairs_in(path: Path) -> list[tuple[str, str]]:
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [(record["source"], record["target"]) for record in records]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learned(tmp_path_factory).folder


def test_translations_are_written_in_order_and_either_way_round(
    tmp_path: Path, teacher: Path
) -> None:
    texts = sources(20, seed=5)
    translator = qkv.load(teacher)
    expected = list(zip(texts, translator.translate(texts), strict=True))
    forth = translate_to_pairs(translator, texts, tmp_path / "forth.jsonl")
    assert pairs_in(forth) == expected
    back = translate_to_pairs(translator, texts, tmp_path / "back.jsonl", back=True)
    assert pairs_in(back) == [(target, source) for source, target in expected]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("back.json", "back.jsonl", "forth.json", "forth.jsonl")
    ]


def test_blank_and_overlong_texts_are_left_out(tmp_path: Path, teacher: Path) -> None:
    translator = qkv.load(teacher)
    texts = ["3 1", "", " ", "1 " * 200]
    path = translate_to_pairs(translator, texts, tmp_path / "some.jsonl")
    assert [source for source, _ in pairs_in(path)] == ["3 1"]
    with pytest.raises(UserError, match="none of 1 texts is short enough"):
        translate_to_pairs(translator, ["1 " * 200], tmp_path / "none.jsonl")


@pytest.mark.parametrize("settings", [{}, {"sample": True, "beams": 1}])
def test_what_was_killed_goes_on_where_it_stopped(
    tmp_path: Path, teacher: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synthesize, "CHUNK", 4)
    texts, translator = sources(18, seed=5), qkv.load(teacher)
    whole = translate_to_pairs(translator, texts, tmp_path / "whole.jsonl", **settings)
    plain, asked = Translator.translate, []

    def dying(self: Translator, texts: Any, **more: Any) -> Any:
        asked.append(texts)
        if len(asked) == 3:
            raise Killed
        return plain(self, texts, **more)

    monkeypatch.setattr(Translator, "translate", dying)
    path = tmp_path / "cut.jsonl"
    with pytest.raises(Killed):
        translate_to_pairs(translator, texts, path, **settings)
    assert not path.exists()
    (begun,) = tmp_path.glob(".cut*")
    with begun.open("ab") as file:
        file.write(b'{"source": "3')  # torn by the kill
    translate_to_pairs(translator, texts, path, **settings)
    assert path.read_bytes() == whole.read_bytes()
    assert sum(map(len, asked)) == 18 + 4  # the chunk that was killed is translated twice
    asked.clear()
    translate_to_pairs(translator, texts, path, **settings)
    assert not asked  # it is there
    translate_to_pairs(translator, texts[:5], path, **settings)
    assert len(pairs_in(path)) == 5  # of other texts, made again


def test_a_student_learns_from_its_pairs_and_the_teacher_s(tmp_path: Path, teacher: Path) -> None:
    more = write_lines(tmp_path / "more.txt", ["7 7 7", "7 7 7", "8 9"])
    wanted = recipe(tmp_path)
    done = qkv.distill(str(teacher), wanted, tmp_path / "student", text=[more], console=silence())
    made = dict(pairs_in(done.folder / "synthetic.jsonl"))
    assert made["8 9"] == qkv.load(teacher).translate("8 9")
    held_out = {source for source, _ in done.splits.valid}
    assert held_out and not held_out & made.keys()
    own = run(tmp_path, "alone").splits
    assert [pair for pair in done.splits.train if pair in own.train][: len(own.train)] == own.train
    assert len(done.splits.train) == len(own.train) + len(made)
    assert done.splits.valid == own.valid
    assert read_log(done.folder)[-1]["step"] == 12


def test_back_translation_trains_the_way_back_and_goes_on_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mono = write_lines(tmp_path / "mono.txt", [spell(text) for text in sources(30, seed=9)])
    # A model of twelve steps would say nothing yet.
    wanted = recipe(tmp_path, data_repeat=2, **{**LEARNS, "train_steps": 80})

    def go(out: str, **more: Any) -> Path:
        made = qkv.backtranslate(wanted, [mono], out=tmp_path / out, console=silence(), **more)
        return made.folder

    whole = go("whole")
    targets = [target for _, target in pairs_in(whole / "synthetic.jsonl")]
    assert targets and set(targets) <= set(mono.read_text().splitlines())
    assert qkv.load(whole / "reverse").translate("three one") is not None
    plain = synthesize.translate_to_pairs

    def dying(*arguments: Any, **more: Any) -> Path:
        plain(*arguments, **more)
        raise Killed

    monkeypatch.setattr(synthesize, "translate_to_pairs", dying)
    with pytest.raises(Killed):
        go("cut")
    monkeypatch.setattr(synthesize, "translate_to_pairs", plain)
    with pytest.raises(UserError, match="cut is not empty; resume with --resume"):
        go("cut")
    cut = go("cut", resume=True)
    assert (cut / "synthetic.jsonl").read_bytes() == (whole / "synthetic.jsonl").read_bytes()
    files = ["config.json", "tokenizer.json"]
    assert everything(cut, files) == everything(whole, files)


def test_what_is_no_use_is_refused(tmp_path: Path, teacher: Path) -> None:
    wanted = recipe(tmp_path)
    mono = write_lines(tmp_path / "mono.txt", ["three"])
    empty = write_lines(tmp_path / "empty.txt", [" "])
    with pytest.raises(UserError, match=r"There is no text in .*empty.txt"):
        qkv.backtranslate(wanted, [empty], out=tmp_path / "a", console=silence())
    with pytest.raises(
        UserError, match=r"train.start_from: .* cannot be the start of the way back"
    ):
        start = RUNS.starting_from(teacher).recipe(tmp_path)
        qkv.backtranslate(start, [mono], out=tmp_path / "b", console=silence())
    with pytest.raises(UserError, match="the recipe's is 'generate'"):
        qkv.distill(str(teacher), recipe_from({"task": "generate"}), tmp_path / "c")
    with pytest.raises(UserError, match="is the folder of this run"):
        qkv.distill(str(teacher), wanted, teacher, resume=True, console=silence())
