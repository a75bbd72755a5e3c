"""The translator: every text in its place, however texts are batched."""

from pathlib import Path

import pytest
import torch

from qkv.config import DecodeConfig
from qkv.errors import UserError
from qkv.tasks import Translator, load
from tests.run.tiny import sources, spell

LINES = sources(40, seed=7)


def test_it_has_learnt_to_spell(translator: Translator) -> None:
    found = translator.translate(LINES)
    right = sum(one == spell(line) for one, line in zip(found, LINES, strict=True))
    assert right >= 0.8 * len(LINES)


@pytest.mark.parametrize("settings", [{}, {"beams": 1}, {"beams": 2, "length_penalty": 0.5}])
@pytest.mark.parametrize("rows", [1, 9, 128])
def test_batched_is_the_same_as_one_by_one(
    translator: Translator, settings: dict, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = [translator.translate(line, **settings) for line in LINES]
    monkeypatch.setattr(translator.engine, "max_rows", rows)
    told: list[int] = []
    found = translator.translate([*LINES, ""], progress=told.append, **settings)
    assert found == [*alone, ""]
    assert len(set(alone)) > 20
    assert sum(told) == len(LINES)


def test_blank_texts_keep_their_places(translator: Translator) -> None:
    texts = ["", "3 1", "   ", "2", "\t", "4 4 4 4", "", "\u3000"]
    expected = ["", "three one", "", "two", "", translator.translate("4 4 4 4"), "", ""]
    assert translator.translate(texts) == expected
    assert [len(found) for found in translator.n_best(texts)] == [0, 1, 0, 1, 0, 1, 0, 0]
    assert translator.translate(["", " "]) == ["", ""]
    assert translator.translate("") == ""


def test_a_score_is_the_log_probability_of_the_text(translator: Translator) -> None:
    model, tokenizers = translator.model, translator.tokenizers
    eos = model.config.eos_id
    source = torch.tensor([[*tokenizers.source.encode("3 1"), eos]])
    target = [*tokenizers.target.encode("three one"), eos]
    shifted = torch.tensor([[model.config.bos_id, *target[:-1]]])
    with torch.no_grad():
        log = model(source, shifted).log_softmax(-1)[0]
    expected = log[range(len(target)), target].sum().item()
    [[best]] = translator.n_best(["3 1"], length_penalty=0.5)
    assert best.text == "three one"
    assert best.log_probability == pytest.approx(expected, abs=1e-4)
    assert best.score == pytest.approx(expected / len(target) ** 0.5, abs=1e-4)


@pytest.mark.parametrize("beams", [1, 4])
def test_a_prefix_is_how_every_translation_begins(translator: Translator, beams: int) -> None:
    found = translator.translate(["3 1", "2", ""], prefix="nine nine", beams=beams)
    assert found[0].startswith("nine nine")
    assert found[1].startswith("nine nine")
    assert found[2] == ""
    assert translator.translate("3 1", prefix="three") == "three one"
    with pytest.raises(UserError, match="leaves no room"):
        translator.translate("3 1", prefix="one " * 40)
    with pytest.raises(
        UserError, match=r"prefix of translations is \['one'\], but must be one text"
    ):
        translator.translate("3 1", prefix=["one"])  # type: ignore[arg-type]


def test_settings_are_the_folder_s_unless_given(folder: Path) -> None:
    model = load(folder, device="cpu")
    assert model.decode == DecodeConfig()
    assert len(model.n_best(["3 1"], n_best=3)[0]) == 3
    other = Translator(model.model, model.tokenizers, DecodeConfig(beams=5, n_best=5))
    assert len(other.n_best(["3 1"])[0]) == 5
    assert other.decode == DecodeConfig(beams=5, n_best=5)
    assert len(model.translate("3 1 4", max_length=2).split()) <= 2
    with pytest.raises(UserError, match=r"n_best \(9\) is larger than beams \(4\)"):
        model.translate("3 1", n_best=9)
    with pytest.raises(UserError, match="unknown key 'beam'; did you mean 'beams'"):
        model.translate("3 1", beam=2)


def test_a_text_over_the_limit_is_refused_by_line_or_cut(translator: Translator) -> None:
    limit = translator.model.config.max_length - 1
    fits, long = " ".join("1" * limit), " ".join("1" * (limit + 1))
    assert len(translator.tokenizers.source.encode(fits)) == limit
    assert translator.translate(fits)
    with pytest.raises(UserError, match=rf"Text 3 has {limit + 1} tokens, .* at most {limit};"):
        translator.translate(["2", "", long])
    cut = translator.translate(["2", "", long, "3"], truncate=True)
    assert cut == ["two", "", translator.translate(fits), "three"]
