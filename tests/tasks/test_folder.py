"""A model folder: it gives back what was saved, and says what is wrong with it."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import qkv
from qkv.config import EmbedConfig
from qkv.errors import UserError
from qkv.tasks import Classifier
from qkv.tasks.classify import Classes
from tests.run import language_tiny, tag_tiny
from tests.tasks import (
    test_answer,
    test_encoder,
    test_tag,
    test_texts,
    test_vision,
    understand_tiny,
)

TEXTS = ["the cat", "no fish", "birds and a dog " * 9]


def classifier(labels: tuple[str, ...], *more: Any, **settings: Any) -> Classifier:
    model = understand_tiny.classifier(labels).model
    return Classifier(model, understand_tiny.TOKENIZER, Classes(labels, *more, **settings))


MODELS: dict[str, Callable[[], Any]] = {
    "class": lambda: classifier(("好", "坏 的", "c"), threshold=0.3, overlap=7),
    "classes": lambda: classifier(("a", "b", "c"), "classes"),
    "number": lambda: classifier(("value",), "number", mean=3.25, deviation=0.1),
    "grey": test_vision.classifier,
    "colours": lambda: test_vision.classifier(3),
    "tag": lambda: tag_tiny.tagger(tag_tiny.vocabulary()),
    "answer": lambda: test_answer.answerer(
        how=dataclasses.replace(test_answer.SETTINGS, unanswerable=True, no_answer=0.5)
    ),
    "fill": lambda: test_encoder.build(
        settings=EmbedConfig(pooling="first", normalize=False, temperature=0.1)
    ),
}
SETTINGS = {"tag": "tags", "answer": "settings", "fill": "embedding"}  # others have classes
SECTIONS = {"tag": "tag", "answer": "answer", "fill": "embed"}
USES: dict[str, Callable[[Any], Any]] = {
    "grey": lambda model: model.classify(test_vision.images(4)),
    "colours": lambda model: model.classify(test_vision.images(4, 3)),
    "tag": lambda model: model.tag(test_tag.TEXTS),
    "answer": lambda model: model.answers(test_answer.PAIRS, n_best=4),
    "fill": lambda model: (model.embed(TEXTS).tolist(), model.fill("the <mask> sat")),
}


OTHERS: dict[str, Callable[[], Any]] = {
    "speak": lambda: language_tiny.speaker(language_tiny.vocabulary()),
    "translate": test_texts.translator,
}


def saved(name: str, folder: Path) -> Any:
    model = {**MODELS, **OTHERS}[name]()
    model.model.float()  # as weights are read
    model.save(str(folder))
    return model


@pytest.mark.parametrize("name", MODELS)
def test_a_folder_gives_back_what_was_saved(tmp_path: Path, name: str) -> None:
    (tmp_path / "tokenizer.json").write_text("of a model that was here before")
    model, use = saved(name, tmp_path), USES.get(name, lambda model: model.classify(TEXTS))
    again = qkv.load(tmp_path, device="cpu")
    assert type(again) is type(model)
    assert use(again) == use(model)
    settings, section = SETTINGS.get(name, "classes"), SECTIONS.get(name, "classify")
    assert getattr(again, settings) == getattr(model, settings)
    content = json.loads((tmp_path / "config.json").read_text())
    assert content["task"] == (name if name in SETTINGS else "classify")
    plain = json.loads(json.dumps(dataclasses.asdict(getattr(model, settings))))
    assert content[section] == plain
    has_text = name not in ("grey", "colours")
    files = ["config.json", "model.safetensors", *["tokenizer.json"] * has_text]
    assert sorted(path.name for path in tmp_path.iterdir()) == files


DAMAGES: list[tuple[str, str, Any, str]] = [
    ("class", "classify.labels", ["a", "b"], "names 2 labels, but its head has 3; restore config"),
    ("class", "classify.labels", [], "names 0 labels, but its head has 3"),
    ("class", "classify.kind", "letter", "classify: kind is 'letter', but must be one of: 'class'"),
    ("class", "classify.labels", 7, "classify: labels is 7, but must be a list"),
    ("class", "classify.lable", "a", "classify: unknown key 'lable'"),
    ("class", "classify.labels", ["a", "b", "a"], "names a label twice, or one is empty; restore"),
    ("class", "classify.labels", ["a", "b", ""], "names a label twice, or one is empty; restore"),
    ("class", "classify.kind", "number", "gives 3 numbers, not one; restore config.json"),
    ("class", "classify.overlap", -5, "classify: overlap is -5, but must be at least 0"),
    ("class", "classify", [], "'classify' must be an object"),
    ("class", "classify", {}, "names 0 labels"),
    ("grey", "classify.labels", ["a", "b"], "restore it"),
    ("grey", "classify.mean", [0.1, 0.2], "restore it"),
    ("grey", "classify.deviation", [], "restore it"),
    ("colours", "classify.deviation", [0, 1, 1], "a deviation that is not above 0"),
    ("tag", "tag.labels", ["O", "B-x"], "names 2 labels, but its head has 5; restore config.json"),
    ("tag", "tag.labels", list("abcde"), "'a' is no label of the scheme iob2; restore config.json"),
    ("tag", "tag.labels", ["O", "B-x", "O", "I-x", "O"], "names a label twice, or one is empty"),
    ("tag", "tag.overlap", -1, "tag: overlap is -1, but must be at least 0"),
    ("tag", "tag.scheme", "iob", "scheme"),
    # Its weights have the same names and shapes.
    ("tag", "model.head", "sequence", "has no head of labels for its task; restore config.json"),
    ("answer", "answer.max_anwser", 3, "unknown key 'max_anwser'; did you mean 'max_answer'?"),
    ("speak", "chat", [], "'chat' must be a template"),
    ("speak", "chat", "plain", "a template or null"),
    ("speak", "bos", 1, "must be true or false"),
    ("speak", "chat_bos", 1, "must be true or false"),
    ("speak", "chat", {"user": "{content}"}, "missing"),
    ("speak", "chat", dict.fromkeys(("system", "user", "assistant"), "{content}"), "ends"),
    ("translate", "model.pad_id", 999, "pad_id is 999, but the model's tokens go from 0 to"),
    ("translate", "model.bos_id", 999, "bos_id is 999, but the model's tokens go from 0 to"),
    ("translate", "model.eos_id", 999, "eos_id is 999, but the model's tokens go from 0 to"),
    ("translate", "model.start_id", 999, "start_id is 999, but the model's tokens go from 0 to"),
]


@pytest.mark.parametrize(("name", "setting", "value", "words"), DAMAGES)
def test_a_config_that_does_not_fit_is_explained(
    tmp_path: Path, name: str, setting: str, value: Any, words: str
) -> None:
    saved(name, tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    section, _, key = setting.partition(".")
    content[section] = {**content[section], key: value} if key else value
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(UserError) as caught:
        qkv.load(tmp_path, device="cpu")
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_run_folder_is_a_model_folder_without_pickle(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= names
    assert {"recipe.toml", "log.jsonl", "checkpoints"} <= names
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    suffixes = {path.suffix for path in files}
    assert suffixes <= {".json", ".safetensors", ".md", ".toml", ".jsonl"}
    assert qkv.load(folder).translate("3 1 4") == "three one four"


@pytest.mark.parametrize("as_given", [str, Path])
def test_a_folder_may_be_given_as_text_or_path(folder: Path, as_given: type) -> None:
    assert isinstance(qkv.load(as_given(folder)), qkv.Translator)


@pytest.mark.parametrize("name", ["class", "grey", "tag", "answer", "fill"])
def test_a_kind_of_object_loads_what_is_of_its_kind(tmp_path: Path, name: str) -> None:
    """Its type is known to an editor, which `qkv.load` cannot say."""
    kind = type(saved(name, tmp_path))
    loaded = kind.load(str(tmp_path), "cpu", dtype="fp32")
    assert repr(loaded) == repr(qkv.load(tmp_path, "cpu"))
    own = type("Own", (kind,), {})
    assert type(own.load(tmp_path, "cpu")) is own
    other = qkv.Tagger if name != "tag" else qkv.Answerer
    with pytest.raises(UserError, match=rf"holds no model for {other.__name__}; load it with qkv"):
        other.load(tmp_path)
    if name != "grey":
        assert isinstance(qkv.Encoder.load(tmp_path), qkv.Encoder)


def test_a_kind_of_object_is_loaded_by_a_packaged_name() -> None:
    translator: qkv.Translator = qkv.Translator.load("zh-en")
    assert translator.translate("我爱你") == qkv.load("zh-en").translate("我爱你")
    assert qkv.Encoder.load("mini-bert").embed("a").shape == (256,)
