"""`qkv inspect`: every view on the terminal, in files and as numbers, and every mistake."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from markupsafe import escape
from PIL import Image
from rich.cells import cell_len

import qkv as package
from qkv.inspect import Trace, load_trace
from qkv.inspect.views import VIEWS
from tests.journeys.conftest import Answer, Command
from tests.proofs.models import KINDS, folder_of

TEXT = "3 1 4"
MORE = ("word", "compare")  # views that need more than one text and one model
ONE = [name for name in VIEWS if name not in MORE]
ALL = [name for name in ONE if name != "beam"]
Look = Callable[..., Answer]


@pytest.fixture
def look(qkv: Command, model: Path) -> Look:
    """`qkv inspect` on the model that spells digits."""
    return lambda *words, **more: qkv("inspect", model, *words, **more)


@pytest.fixture(scope="module")
def trace(model: Path) -> Trace:
    found: Trace = package.load(model, device="cpu").trace(TEXT)
    return found


@pytest.fixture
def kind(tmp_path: Path) -> Callable[[str], Path]:
    """A folder of a tiny model of any kind."""
    return lambda name: folder_of(KINDS[name](), tmp_path / "tiny" / name)


def numbers(answer: Answer) -> dict[str, Any]:
    assert answer.code == 0, answer
    (line,) = answer.lines
    found: dict[str, Any] = json.loads(line)
    return found


def test_a_text_gives_flow_steps_and_attention(look: Look, trace: Trace) -> None:
    answer = look("--source", TEXT)
    assert (answer.code, answer.err) == (0, "")
    usual = ["From input to output", "Step by step", "Attention"]
    assert [line for line in answer.lines if line in usual] == usual
    assert max(map(cell_len, answer.lines)) <= 80
    (row,) = [line for line in answer.lines if "softmax(Logits)" in line]
    assert row.rstrip().endswith(f"(B, T, V) = {trace.shape('logits')}")
    best = trace.steps(1)[0].candidates[0]
    assert any(
        line.startswith("0 ") and f"{best.name} {best.probability:.3f}" in line
        for line in answer.lines
    )
    assert "Cross-attention: target tokens look at source tokens, layer 0, mean of 2 heads" in (
        answer.lines
    )
    weights = trace["decoder.0.cross_attention.weights"][0].mean(dim=0)
    last = [line for line in answer.lines if line.strip()][-1]
    assert last.split()[-1] == f"{weights[-1, -1]:.2f}"


def test_a_piped_text_is_the_same(look: Look) -> None:
    assert look(stdin=f"{TEXT}\n").out == look("--source", TEXT).out
    assert "Step by step" not in look("--view", "flow", stdin=TEXT).out


def test_layers_and_heads_are_shown_each_by_itself(look: Look, trace: Trace) -> None:
    answer = look("--source", TEXT, "--view", "attention", "--attention", "masked", "--head", 1)
    assert "Masked self-attention of the decoder, layer 0, head 1" in answer.lines
    assert "Cross" not in answer.out
    weights = trace["decoder.0.self_attention.weights"][0, 1]
    assert f"{weights[1, 0]:.2f}" in answer.out
    both = look("--source", TEXT, "--view", "attention", "--head", 1, "--head", 0, "--layer", 0)
    assert [line.split(", ")[-1] for line in both.lines if ", head " in line] == [
        "head 1",
        "head 0",
    ] * 3


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_keeps_to_80_columns(look: Look, model: Path, view: str) -> None:
    more = {"word": ("--source", "9 4", "--word", "4"), "compare": ("--with", model)}
    answer = look("--source", TEXT, "--view", view, "--beams", 2, *more.get(view, ()))
    assert answer.code == 0, answer.err
    assert answer.lines[0] == VIEWS[view].title
    assert max(map(cell_len, answer.lines)) <= 80
    assert len(answer.lines) > 5


def test_numbers_are_those_of_the_trace(look: Look, trace: Trace) -> None:
    words = [word for view in (*ALL, "beam") for word in ("--view", view)]
    found = numbers(look("--source", TEXT, *words, "--json", "--device", "cpu", "--top", 2))
    assert [*found] == ["model", "tokens", *ONE]
    assert found["tokens"] == {side: trace.tokens(side) for side in ("source", "target")}
    shapes = {step["key"]: tuple(step["shape"]) for step in found["flow"]}
    main = [key for key in trace.names("*") if not trace.find(key).is_detail]
    assert shapes == {key: trace.shape(key) for key in main}
    cross = found["attention"]["cross"]
    same(cross["weights"], trace.maps("decoder.cross_attention").weights)
    assert (cross["rows"], cross["columns"]) == (trace.tokens("target"), trace.tokens("source"))
    step, own = found["steps"][1], trace.steps(2)[1]
    assert [one["name"] for one in step["candidates"]] == [one.name for one in own.candidates]
    assert step["entropy"] == pytest.approx(own.entropy)
    same(found["lens"]["probabilities"], trace.lens(2).probabilities)
    same(found["drift"]["distance"], trace.drift().distance)
    same(found["attribution"]["scores"]["source"], trace.attribution().scores["source"])
    same(found["rollout"]["shares"], trace.rollout())
    tree = trace.beam_tree()
    nodes = found["beam"]["nodes"]
    assert [node["name"] for node in nodes if node["best"]] == [
        node.name for node in tree.nodes if node.best
    ]
    assert len(nodes) == len(tree.nodes)
    same(found["positions"]["table"], trace.model.encoder.positions.table)  # type: ignore[union-attr, arg-type]
    assert found["curves"]["run"][-1]["step"] == 350
    assert all(len(one["nearest"]) == 2 for one in found["embeddings"])


def same(given: object, expected: torch.Tensor) -> None:
    torch.testing.assert_close(torch.tensor(given), expected.detach().float(), atol=1e-5, rtol=1e-4)


def test_one_view_is_one_picture(look: Look, tmp_path: Path) -> None:
    path = tmp_path / "map.svg"
    answer = look("--source", TEXT, "--view", "attention", "--out", path)
    assert answer.lines == [str(path)]
    assert answer.err == (
        "· attention: cross is drawn; --attention encoder or --attention masked shows the others\n"
    )
    drawn = path.read_text(encoding="utf-8")
    assert "layer 0, head 1" in drawn and "three" in drawn
    words = ["--view", "attention", "--attention", "cross", "--out", path]
    assert look("--source", TEXT, *words).err == ""
    assert drawn == path.read_text(encoding="utf-8")


def test_several_views_are_several_pictures_with_their_names(look: Look, tmp_path: Path) -> None:
    answer = look("--source", TEXT, "--view", "lens", "--view", "flow", "--out", tmp_path / "a.png")
    assert answer.lines == [str(tmp_path / "a-flow.png"), str(tmp_path / "a-lens.png")]
    for line in answer.lines:
        assert Path(line).read_bytes().startswith(b"\x89PNG")
    answer = look("--source", TEXT, "--view", "drift", "--out", tmp_path / "a.pdf")
    assert Path(answer.lines[0]).read_bytes().startswith(b"%PDF")


def test_a_page_holds_all_that_applies(look: Look, tmp_path: Path) -> None:
    path = tmp_path / "inside.html"
    answer = look("--source", TEXT, "--out", path)
    assert answer.lines == [str(path)]
    page = path.read_text(encoding="utf-8")
    for name in ONE:
        title, about = (escape(text) for text in (VIEWS[name].title, VIEWS[name].about))
        assert f"<h2>{title}</h2><p>{about}</p>" in page
    assert "<p>source: ▁3 ▁1 ▁4 &lt;eos&gt;</p>" in page
    assert "<eos>" not in page
    assert "<script" not in page and 'src="http' not in page
    assert page.count("<section>") == page.count("</section>") == len(ONE)


def test_json_and_npz_files(look: Look, tmp_path: Path, trace: Trace) -> None:
    answer = look("--source", TEXT, "--view", "drift", "--out", tmp_path / "a.json")
    found = json.loads(Path(answer.lines[0]).read_text(encoding="utf-8"))
    assert [*found] == ["model", "tokens", "drift"]
    answer = look("--source", TEXT, "--out", tmp_path / "whole.npz")
    assert answer.lines == [str(tmp_path / "whole.npz"), str(tmp_path / "whole.json")]
    saved = load_trace(tmp_path / "whole.npz")
    assert saved.keys() == trace.names("*")
    torch.testing.assert_close(saved["logits"], trace["logits"], atol=1e-4, rtol=1e-4)


def test_a_gguf_file_has_no_curves(qkv: Command, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    assert "is a model without a training log" in qkv("inspect", file, "--view", "curves").mistake


def test_without_a_text_there_are_the_curves_of_training(
    look: Look, model: Path, tmp_path: Path
) -> None:
    answer = look()
    assert answer.lines[0] == "Training curves"
    assert "only the views positions, embeddings and curves need none" in answer.err
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(model / "log.jsonl", other)
    found = numbers(look("--view", "curves", "--with", other, "--json"))
    assert [*found["curves"]] == ["run", "other"]
    path = tmp_path / "curves.svg"
    assert look("--view", "curves", "--with", other, "--out", path).lines == [str(path)]
    assert "other" in path.read_text(encoding="utf-8")


def test_words_and_their_neighbours(look: Look, trace: Trace) -> None:
    answer = look("--word", "three", "--word", "7", "--top", 3)
    assert (
        answer.out == look("--view", "embeddings", "--word", "three", "--word", "7", "--top", 3).out
    )
    rows = [line.split() for line in answer.lines if line.startswith(("▁three ", "▁7 "))]
    assert [len(row) for row in rows] == [7, 7]
    mistake = look("--view", "embeddings", "--word", "seventeen").mistake
    assert "'seventeen' is not one token" in mistake
    assert "needs a text, or a word" in look("--view", "embeddings").mistake


def test_of_very_many_panels_the_last_layers_are_drawn(
    look: Look,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    qkv: Command,
    kind: Callable[[str], Path],
) -> None:
    monkeypatch.setattr("qkv.inspect.answers.attention.MAX_PANELS", 3)
    words = ["inspect", kind("fill"), "--source", "the cat", "--view", "attention", "--json"]
    answer = qkv(*words)
    assert answer.err == "· attention: the last 1 of 2 layers; --layer shows others\n"
    assert json.loads(answer.out)["attention"]["encoder"]["layers"] == [1]
    chosen = qkv(*words, "--layer", 0)
    assert chosen.err == ""
    assert json.loads(chosen.out)["attention"]["encoder"]["layers"] == [0]


def test_chinese_without_a_font_is_told(
    qkv: Command, kind: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qkv.inspect.draw.fonts.chinese_font", lambda: None)
    words = ["inspect", kind("fill"), "--source", "猫猫", "--view", "attention", "--out"]
    answer = qkv(*words, tmp_path / "a.png")
    assert answer.err.startswith("· a.png: ⟨1⟩ = 猫: no font on this machine")
    answer = qkv(*words, tmp_path / "a.svg")
    assert answer.err == ""
    assert "猫" in (tmp_path / "a.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("language model", ["--source", "abc", "--target", "d"]),
        ("fill", ["--source", "the cat"]),
        ("embed", ["--source", "the cat"]),
        ("class", ["--source", "the cat", "--second", "a dog", "--target", "b"]),
        ("classes", ["--source", "the cat", "--target", "a|b"]),
        ("number", ["--source", "the cat", "--target", "1.5"]),
        ("tag", ["--source", "the cat", "--target", "O B-x"]),
        ("answer", ["--source", "a cat sees", "--second", "who", "--target", "cat"]),
    ],
)
def test_every_kind_of_model_shows_all_that_it_has(
    qkv: Command, kind: Callable[[str], Path], name: str, words: list[str]
) -> None:
    found = numbers(qkv("inspect", kind(name), *words, "--view", "all", "--json", "--beams", 2))
    lacking = {"embed": {"steps", "lens", "attribution"}, "number": {"steps", "lens"}}
    expected = {*ONE} - lacking.get(name, set()) - {"curves"}
    if name != "language model":
        expected -= {"beam", "shift", "contributions"}
        expected -= set() if name in ("fill", "embed") else {"neurons"}
    assert {*found} - {"model", "tokens"} == expected
    assert all(found["tokens"].values())


def test_an_image_is_read_from_its_file(
    qkv: Command, kind: Callable[[str], Path], tmp_path: Path
) -> None:
    path = tmp_path / "image.png"
    Image.new("RGB", (8, 8), "red").save(path)
    found = numbers(qkv("inspect", kind("image"), "--source", path, "--json"))
    assert found["tokens"]["source"][:3] == ["[first]", "0,0", "0,1"]
    assert "reads images" in qkv("inspect", kind("image"), "--view", "embeddings").mistake


def test_a_long_text_shows_its_end(qkv: Command, kind: Callable[[str], Path]) -> None:
    text = "a" * 39
    answer = qkv("inspect", kind("translator"), "--source", "a", "--target", text[:38])
    assert answer.code == 0, answer.err
    assert "The last 32 of 39 steps." in answer.lines
    assert any("(the last 32 tokens)" in line for line in answer.lines)
    words = ["--source", "a", "--target", text[:38], "--view", "steps", "--view", "attribution"]
    found = numbers(qkv("inspect", kind("translator"), *words, "--json"))
    assert len(found["steps"]) == 39
    assert found["attribution"]["positions"] == list(range(7, 39))


def test_mistakes_before_anything_is_loaded(look: Look, tmp_path: Path) -> None:
    mistake = look("--view", "atention").mistake
    assert mistake == "There is no view 'atention'; did you mean 'attention'?"
    assert "it may be one of all, attention" in look("--view", "xyz").mistake
    assert "Unknown attention 'self'" in look("--attention", "self").mistake
    assert "a.gif ends in .gif" in look("--out", tmp_path / "a.gif").mistake
    assert "ends in nothing" in look("--out", tmp_path / "a").mistake
    assert "give one of the two" in look("--out", tmp_path / "a.json", "--json").mistake
    assert "add --view curves" in look("--view", "flow", "--with", tmp_path).mistake
    (tmp_path / "b.png").mkdir()
    assert "is a directory" in look("--out", tmp_path / "b.png").mistake


def test_mistakes_about_texts(
    look: Look, qkv: Command, kind: Callable[[str], Path], tmp_path: Path
) -> None:
    assert "give one with --source" in look("--view", "lens").mistake
    assert "The view lens needs a text" in look("--view", "lens", "--view", "positions").mistake
    assert "give one with --source" in qkv("inspect", kind("fill")).mistake
    assert "needs a text" in look("--view", "positions", "--out", tmp_path / "a.npz").mistake
    assert "leave it out" in look("--source", "1", "--second", "2").mistake
    assert look("--source", "1 " * 50).mistake.endswith("at most 31; split it into sentences.")
    answerer = qkv("inspect", kind("answer"), "--source", "a cat sees")
    assert "the text as --source and the question as --second" in answerer.mistake
    words = ["--source", "the cat", "--target"]
    assert "no head that predicts tokens" in qkv("inspect", kind("embed"), *words, "a").mistake
    assert "'x'" in qkv("inspect", kind("class"), *words, "x").mistake
    assert "2 words need as many labels" in qkv("inspect", kind("tag"), *words, "O").mistake


def test_mistakes_about_parts_that_a_model_does_not_have(
    look: Look, qkv: Command, kind: Callable[[str], Path], tmp_path: Path
) -> None:
    given = ["--source", TEXT, "--view", "attention"]
    assert "no layer 3; this model has 1" in look(*given, "--layer", 3).mistake
    assert "no head 2; this model has 2" in look(*given, "--head", 2).mistake
    encoder = ["inspect", kind("embed"), "--source", "the cat", "--view"]
    assert "no beam search" in qkv(*encoder, "beam").mistake
    assert "no probabilities" in qkv(*encoder, "steps").mistake
    assert "no output to explain" in qkv(*encoder, "attribution").mistake
    mistake = qkv(*encoder, "attention", "--attention", "cross").mistake
    assert "no cross attention; it has encoder." in mistake
    rotary = numbers(qkv("inspect", kind("language model"), "--view", "positions", "--json"))
    assert rotary["positions"]["rates"][0] == 1
    assert "log.jsonl" in qkv("inspect", kind("embed"), "--view", "curves").mistake
    assert "is not a model" in qkv("inspect", tmp_path, "--source", "a").mistake


def test_a_pass_is_changed_before_it_is_shown(look: Look, trace: Trace) -> None:
    words = ["--source", TEXT, "--view", "steps", "--json", "--device", "cpu", "--top", 1]
    key = "decoder.0.cross_attention"
    found = numbers(look(*words, "--silence", f"{key}:1", "--silence", "encoder.0.self_attention"))
    changed = trace.silence(key, 1).silence("encoder.0.self_attention")
    expected = [step.candidates[0].probability for step in changed.steps(1)]
    given = [step["candidates"][0]["probability"] for step in found["steps"]]
    assert given == pytest.approx(expected, abs=1e-4)
    found = numbers(look(*words, "--target", "three one four", "--patch", "encoder.output=9 1 4"))
    assert found["steps"][0]["candidates"][0]["name"] == "▁nine"


def test_mistakes_about_changes(look: Look) -> None:
    given = ["--source", TEXT, "--view", "steps"]
    assert "no quantity 'encoder.9.x'" in look(*given, "--silence", "encoder.9.x").mistake
    assert "a head is a number from 0 on" in look(*given, "--silence", "encoder.output:a").mistake
    mistake = look(*given, "--silence", "encoder.0.self_attention:7").mistake
    assert "has no head 7; it has 2" in mistake
    assert "has no text to take the quantity from" in look(*given, "--patch", "logits").mistake
    mistake = look(*given, "--patch", "encoder.output=3 1 4 1").mistake
    assert "compare texts with as many tokens" in mistake
    assert "add --source" in look("--view", "positions", "--silence", "logits").mistake
    beam = look("--source", TEXT, "--view", "beam", "--silence", "encoder.0.self_attention")
    assert "leave out --silence and --patch" in beam.mistake


def test_views_speak_chinese(look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = look("--source", TEXT, "--view", "attention", "--language", "zh")
    assert answer.lines[0] == "注意力" and "交叉注意力：目标词元看源词元" in answer.out
    assert look("--source", TEXT, "--view", "attention").lines[0] == "Attention"
    path = tmp_path / "inside.html"
    words = ["--source", TEXT, "--view", "drift", "--language", "zh", "--out"]
    assert look(*words, path).code == 0
    assert "<h2>残差流的变化</h2>" in path.read_text(encoding="utf-8")
    monkeypatch.setattr("qkv.inspect.draw.fonts.chinese_font", lambda: None)
    answer = look(*words, tmp_path / "a.png")
    assert answer.lines == [str(tmp_path / "a.png")]
    assert "图中文字改用英文" in answer.err
    assert "there are en and zh" in look("--source", TEXT, "--language", "fr").mistake


def test_one_token_and_several_texts(look: Look, trace: Trace, model: Path) -> None:
    words = ["--source", TEXT, "--view", "hand", "--token", "4", "--head", 1, "--json"]
    found = numbers(look(*words))["hand"]
    assert (found["token"], found["head"]) == ("▁4", 1)
    weights = trace["encoder.0.self_attention.weights"][0, 1, found["position"]]
    same([row["weight"] for row in found["keys"]], weights)
    texts = ["--source", "3 1 4", "--source", "9 4"]
    found = numbers(look(*texts, "--view", "word", "--word", "4", "--json"))["word"]
    assert found["tokens"] == [[2], [1]]
    assert "no '7'; give texts" in look(*texts, "--view", "word", "--word", "7").mistake
    assert "--target is for one --source" in look(*texts, "--target", "a").mistake
    found = numbers(look("--source", TEXT, "--view", "compare", "--with", model, "--json"))
    assert all(largest == 0 for _, largest, _ in found["compare"]["moved"])
