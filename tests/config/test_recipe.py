"""Recipes: TOML in, typed values out, and a clear sentence for every mistake."""

import dataclasses
import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.config import (
    SECTIONS,
    DecodeConfig,
    Recipe,
    TrainConfig,
    load_recipe,
    recipe_from,
    recipe_to_dict,
    to_toml,
)
from qkv.config.fields import describe
from qkv.errors import UserError

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
TEXT = """
task = "translate"
[data]
source = ["a.zh", "b.zh"]
target = "a.en"
[tokenizer]
kind = "unigram"
[model]
preset = "transformer-tiny"
norm_position = "pre"
[train]
steps = 100
lr = 1
[decode]
early_stopping = "never"
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_load(path):
    recipe = load_recipe(path)
    assert recipe.data.source == ("a.zh", "b.zh")
    assert recipe.data.target == ("a.en",)  # one name stands for a list of one
    assert recipe.tokenizer.kind == "unigram"
    assert recipe.preset == "transformer-tiny"
    assert recipe.model == {"norm_position": "pre"}
    assert recipe.train == dataclasses.replace(TrainConfig(), steps=100, lr=1.0)
    assert isinstance(recipe.train.lr, float)
    assert recipe.decode.early_stopping == "never"


def test_an_empty_recipe_is_the_defaults(tmp_path):
    (tmp_path / "empty.toml").write_text("")
    assert load_recipe(tmp_path / "empty.toml") == Recipe()


@pytest.mark.parametrize("recipe", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.name)
def test_our_own_recipes_load(recipe):
    assert recipe_to_dict(recipe_from(recipe_to_dict(load_recipe(recipe)))) == recipe_to_dict(
        load_recipe(recipe)
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"trian": {}}, "r.toml: unknown key 'trian'; did you mean 'train'?"),
        (
            {"xyz": {}},
            "r.toml: unknown key 'xyz'; "
            "it may be one of answer, chat, classify, data, decode, denoise, embed, mask, model, "
            "tag, task, teacher, tokenizer, train.",
        ),
        ({"train": 3}, "r.toml: train must be a section, [train], with keys under it."),
        ({"model": "big"}, "r.toml: model must be a section, [model], with keys under it."),
        (
            {"task": "transalte"},
            "r.toml: task is 'transalte', but must be one of: "
            "'translate', 'generate', 'instruct', 'fill', 'denoise', 'classify', 'tag', 'answer', "
            "'embed'.",
        ),
        ({"train": {"stps": 1}}, "r.toml: [train]: unknown key 'stps'; did you mean 'steps'?"),
        ({"train": {"steps": 1.5}}, "r.toml: [train]: steps is 1.5, but must be of type int."),
        ({"train": {"lr": True}}, "r.toml: [train]: lr is True, but must be of type float."),
        (
            {"train": {"optimizer": "sgd"}},
            "r.toml: [train]: optimizer is 'sgd', but must be one of: 'adamw', 'adam', 'muon'.",
        ),
        ({"train": {"steps": 0}}, "train: steps is 0, but must be at least 1."),
        ({"train": {"beta1": 1.5}}, "train: beta1 is 1.5, but must be at most 0.9999."),
        ({"data": {"source": 3}}, "r.toml: [data]: source is 3, but must be a list."),
        ({"data": {"source": [3]}}, "r.toml: [data]: source is 3, but must be of type str."),
        ({"data": {"max_ratio": 0.5}}, "data: max_ratio is 0.5, but must be at least 1."),
        ({"tokenizer": {"vocab_size": 3}}, "tokenizer: vocab_size is 3, but must be at least 16."),
        (
            {"decode": {"early_stopping": "maybe"}},
            "r.toml: [decode]: early_stopping is 'maybe', but must be bool or 'never'.",
        ),
        (
            {"decode": {"beams": 2, "n_best": 3}},
            "decode: n_best (3) is larger than beams (2); raise beams or lower n_best.",
        ),
        (
            {"model": {"preset": "transformer-bse"}},
            "r.toml: [model]: unknown preset 'transformer-bse'; did you mean 'transformer-base'?",
        ),
        (
            {"model": {"d_modl": 8}},
            "r.toml: [model]: unknown key 'd_modl'; did you mean 'd_model'?",
        ),
        (
            {"model": {"d_model": 30}},
            "model: d_model (30) is not divisible by n_heads (4); "
            "choose n_heads among the divisors of d_model, or set d_key.",
        ),
        (
            {"denoise": {"kind": "span"}},
            "r.toml: [denoise]: kind is 'span', but must be one of: 'spans', 'infill'.",
        ),
        ({"denoise": {"share": 0.95}}, "denoise: share is 0.95, but must be at most 0.9."),
        ({"denoise": {"span_length": 0.5}}, "denoise: span_length is 0.5, but must be at least 1."),
        ({"denoise": {"sentinels": 1}}, "denoise: sentinels is 1, but must be at least 2."),
        (
            {"denoise": {"kind": "infill", "span_length": 1}},
            "denoise: span_length is 1.0, but kind = 'infill' needs at least 1.5, for too many "
            "spans would be empty; raise it, or use 'spans'.",
        ),
        (
            {"denoise": {"permute_sentences": True}},
            "denoise: permute_sentences needs kind = 'infill', which writes the whole text in its "
            "true order; leave one of them out.",
        ),
        (
            {"task": "denoise", "model": {"preset": "bert-mini"}},
            "r.toml: [model]: task = 'denoise' needs a model of family 'encoder-decoder', but this "
            "one is of 'encoder'; choose another preset, or another task.",
        ),
        (
            {"task": "generate", "train": {"consistency": 1.0}},
            "r.toml: [train]: consistency is for classify, tag and answer, but the task is "
            "'generate'; leave it out.",
        ),
        (
            {"task": "classify", "teacher": {"text": "a.txt"}},
            "teacher: text has no labels, so somebody must say what it is; name models too.",
        ),
        *(
            (
                {"task": "classify", "teacher": {"models": "big"}, **values},
                "r.toml: [teacher]: models teach task = 'classify' with one class of several; "
                "leave them out.",
            )
            for values in (
                {"task": "tag"},
                {"task": "generate"},
                {"classify": {"kind": "classes"}},
                {"classify": {"kind": "number"}},
            )
        ),
        ({"teacher": {"weight": 1.5}}, "teacher: weight is 1.5, but must be at most 1."),
        ({"teacher": {"weight": -0.1}}, "teacher: weight is -0.1, but must be at least 0."),
        (
            {"teacher": {"temperature": 0}},
            "teacher: temperature is 0.0, but must be at least 0.01.",
        ),
        (
            {"task": "denoise", "train": {"metric": "bleu"}},
            "r.toml: [train]: metric = 'bleu' is not measured by task = 'denoise'; use one of: "
            "'loss'.",
        ),
        (
            {"task": "embed", "model": {"preset": "vit-tiny"}},
            "r.toml: [model]: task = 'embed' reads text, but this model reads images, and an image "
            "has no words to hide or to label; choose another preset, or another task.",
        ),
    ],
    ids=str,
)
def test_mistakes(values, message):
    with pytest.raises(UserError) as error:
        recipe_from(values, "r.toml")
    assert str(error.value) == message


@pytest.mark.parametrize("name", [3, ["transformer-base"], {}], ids=str)
def test_a_preset_that_is_no_name(name):
    with pytest.raises(UserError, match=r"unknown preset .*transformer-base"):
        recipe_from({"model": {"preset": name}})


def test_the_share_that_is_hidden_is_the_paper_s_unless_it_is_set():
    shares = [
        recipe_from({"task": "denoise", "denoise": values}).denoise.hidden_share
        for values in ({}, {"kind": "infill"}, {"kind": "infill", "share": 0.2})
    ]
    assert shares == [0.15, 0.3, 0.2]


def test_a_teacher_may_be_one_or_several():
    one = recipe_from({"task": "classify", "teacher": {"models": "big", "text": "a.txt"}}).teacher
    assert (one.models, one.text) == (("big",), ("a.txt",))
    several = recipe_from({"task": "classify", "teacher": {"models": ["a", "b"]}}).teacher
    assert several.models == ("a", "b")


def test_sampling_may_give_more_than_there_are_beams():
    assert recipe_from({"decode": {"sample": True, "n_best": 9}}).decode.n_best == 9


def test_bad_files(tmp_path):
    missing, bad, latin = (tmp_path / name for name in ("no.toml", "bad.toml", "latin.toml"))
    bad.write_text("[train]\nsteps = \n")
    latin.write_bytes(b"# caf\xe9\n")
    for path, message in [
        (missing, f"There is no recipe {missing}; check the path."),
        (bad, f"{bad} is not valid TOML: Invalid value (at line 2, column 9)."),
        (latin, f"{latin} is not UTF-8 text (byte 5)."),
        (tmp_path, f"{tmp_path} cannot be read: Is a directory."),
    ]:
        with pytest.raises(UserError) as error:
            load_recipe(path)
        assert str(error.value) == message


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("train.steps=7", "train", "steps", 7),
        ("train.lr=1e-3", "train", "lr", 1e-3),
        (" train.steps = 8", "train", "steps", 8),
        ("train.compile=off", "train", "compile", "off"),
        ("train.compile = off ", "train", "compile", "off"),
        ('train.compile="on"', "train", "compile", "on"),
        ("tokenizer.lowercase=true", "tokenizer", "lowercase", True),
        ("data.source=x y.txt", "data", "source", ("x y.txt",)),
        ('data.source=["x", "y"]', "data", "source", ("x", "y")),
        ("data.source=[]", "data", "source", ()),
        ("data.source_field=a=b", "data", "source_field", "a=b"),
        ("tokenizer.path=", "tokenizer", "path", ""),
    ],
)
def test_overrides(path, override, section, key, value):
    recipe = load_recipe(path, [override])
    assert getattr(getattr(recipe, section), key) == value
    rest = dataclasses.replace(recipe, **{section: getattr(load_recipe(path), section)})
    assert rest == load_recipe(path)


def test_overrides_of_the_model_and_of_sections_that_are_not_there(tmp_path):
    path = tmp_path / "empty.toml"
    path.write_text("")
    recipe = load_recipe(path, ["model.preset=transformer-big", "model.tie=none", "train.seed=1"])
    assert (recipe.preset, recipe.model, recipe.train.seed) == (
        "transformer-big",
        {"tie": "none"},
        1,
    )
    assert load_recipe(path, ["train.seed=1", "train.seed=2"]).train.seed == 2  # the last one wins


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.steps", "--set 'train.steps' must have the form section.key=value."),
        ("=3", "--set '=3' must have the form section.key=value."),
        ("train.=3", "--set 'train.=3' must have the form section.key=value."),
        ("task.x=3", "--set 'task.x=3': task is not a section."),
        ("steps=3", "r.toml: unknown key 'steps'; "),
        ("train.step=3", "r.toml: [train]: unknown key 'step'; did you mean 'steps'?"),
        ("train.steps=many", "r.toml: [train]: steps is 'many', but must be of type int."),
        ("train=3", "r.toml: train must be a section, [train], with keys under it."),
    ],
)
def test_bad_overrides(path, override, message):
    with pytest.raises(UserError) as error:
        load_recipe(path, [override])
    assert str(error.value).replace(str(path), "r.toml").startswith(message)


def test_round_trip(path):
    recipe = load_recipe(path, ["decode.beams=2", "model.max_length=99"])
    plain = recipe_to_dict(recipe)
    assert recipe_from(plain) == recipe
    assert recipe_from(json.loads(json.dumps(plain))) == recipe
    assert recipe_from(tomllib.loads(to_toml(plain))) == recipe
    assert recipe_from(recipe_to_dict(Recipe())) == Recipe()


plain_values = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["C"])),
    st.lists(st.text("aé我\"\\'\n\t"), max_size=3),
)
keys = st.text("abc_", min_size=1)


@given(st.dictionaries(keys, plain_values | st.dictionaries(keys, plain_values, max_size=3)))
def test_toml_is_read_back_as_it_was_written(values):
    assert tomllib.loads(to_toml(values)) == values


@pytest.mark.parametrize("section", [*SECTIONS.values()])
def test_every_field_is_explained_and_its_default_is_valid(section):
    assert section() == section(**dataclasses.asdict(section()))
    for name, kind, default, help_text in describe(section):
        assert help_text and kind, name
        assert getattr(section(), name) == default


def test_describe():
    rows = {name: (kind, default) for name, kind, default, _ in describe(DecodeConfig)}
    assert rows["beams"] == ("int", 4)
    assert rows["early_stopping"] == ("bool or 'never'", False)
    train = {name: kind for name, kind, *_ in describe(TrainConfig)}
    assert train["optimizer"] == "'adamw' | 'adam' | 'muon'"
    data = {name: kind for name, kind, *_ in describe(SECTIONS["data"])}
    assert data["source"] == "list of str"
