"""Recipes: TOML in, typed values out, and a clear sentence for every mistake."""

import dataclasses
import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from docs.write_settings import describe
from qkv.config import (
    SECTIONS,
    Recipe,
    TrainConfig,
    load_recipe,
    recipe_from,
    recipe_to_dict,
    to_toml,
)
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
    loaded = load_recipe(recipe)
    assert recipe_from(recipe_to_dict(loaded)) == loaded


MISTAKES = [
    ({"trian": {}}, "r.toml: unknown key 'trian'; did you mean 'train'?"),
    ({"train": 3}, "r.toml: train must be a section, [train]."),
    ({"model": "big"}, "r.toml: model must be a section, [model]."),
    ({"task": "transalte"}, "r.toml: task is 'transalte', but must be one of: translate, generate"),
    ({"data": {"source": 3}}, "r.toml: [data]: source is 3, but must be a list."),
    ({"data": {"source": [3]}}, "r.toml: [data]: source is 3, but must be a string."),
    ({"decode": {"n_best": 5}}, "r.toml: decode: n_best (5) is larger than beams (4); raise"),
    (
        {"decode": {"early_stopping": "maybe"}},
        "r.toml: [decode]: early_stopping is 'maybe', but must be bool or 'never'.",
    ),
    ({"model": {"preset": "transformer-bse"}}, "r.toml: [model]: unknown preset 'transformer-bse'"),
    (
        {"task": "denoise", "denoise": {"kind": "infill", "span_length": 1.0}},
        "r.toml: denoise: span_length is 1.0, but kind = 'infill' needs at least 1.5",
    ),
    (
        {"task": "denoise", "denoise": {"permute_sentences": True}},
        "r.toml: denoise: permute_sentences needs kind = 'infill'",
    ),
    (
        {"task": "denoise", "model": {"preset": "bert-mini"}},
        "r.toml: [model]: task = 'denoise' needs a model of family 'encoder-decoder', but",
    ),
    (
        {"task": "embed", "model": {"preset": "vit-tiny"}},
        "r.toml: [model]: task = 'embed' reads text, but preset vit-tiny reads images",
    ),
    (
        {"task": "classify", "teacher": {"text": "a.txt"}},
        "r.toml: teacher: text has no labels; name models to label it.",
    ),
    (
        {"task": "classify", "classify": {"kind": "number"}, "teacher": {"models": "a"}},
        "r.toml: [teacher]: models need classify.kind = 'class'.",
    ),
    (
        {"task": "denoise", "train": {"metric": "bleu"}},
        "r.toml: [train]: metric = 'bleu' is not measured by task = 'denoise'; use one of: 'loss'",
    ),
    ({"train": {"metric": "bleu", "valid_bleu": False}}, "r.toml: train: metric = 'bleu' needs"),
    (
        {"task": "fill", "mask": {"random": 0.6, "kept": 0.5}},
        "r.toml: mask: random (0.6) and kept (0.5) are fractions of the same tokens",
    ),
    (
        {"task": "embed", "train": {"label_smoothing": 0.1}},
        "r.toml: task = 'embed' does not read train.label_smoothing (only translate, generate, ",
    ),
    (
        {"task": "generate", "mask": {"share": 0.15}},
        "r.toml: task = 'generate' does not read [mask] (only fill); leave it out, or set task "
        "to that.",
    ),
    (
        {"task": "generate", "model": {"n_encoder_layers": 2}},
        "r.toml: [model]: n_encoder_layers is for models with an encoder, but the family is",
    ),
    (
        {"model": {"rotary_base": 5}},
        "r.toml: [model]: rotary_base is for rotary positions, but positions = 'sinusoidal'",
    ),
    ({"format": 2}, "r.toml: format is 2, but this version of qkv reads up to 1"),
]


@pytest.mark.parametrize(("values", "message"), MISTAKES, ids=str)
def test_mistakes(values, message):
    with pytest.raises(UserError) as error:
        recipe_from(values, "r.toml")
    assert str(error.value).startswith(message)
    assert str(error.value)[-1] in ".?"


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
        ("data.target=", "data", "target", ()),  # and not a file named ""
        ("train.lr=.5", "train", "lr", 0.5),
        ("train.lr=5.", "train", "lr", 5.0),
        ("tokenizer.lowercase=True", "tokenizer", "lowercase", True),
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
    assert (recipe.preset, recipe.model) == ("transformer-big", {"tie": "none"})
    assert recipe.train.seed == 1
    assert load_recipe(path, ["train.seed=1", "train.seed=2"]).train.seed == 2  # the last one wins


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.steps", "--set 'train.steps' must have the form section.key=value."),
        ("=3", "--set '=3' must have the form section.key=value."),
        ("train.=3", "--set 'train.=3' must have the form section.key=value."),
        ("task.x=3", "--set 'task.x=3': task is not a section."),
        ("steps=3", "--set steps: unknown key 'steps'; did you mean 'train.steps'?"),
        ("train.step=3", "--set train.step: [train]: unknown key 'step'; did you mean 'steps'?"),
        ("train.steps=many", "--set train.steps: [train]: steps is 'many', but must be a whole"),
        ("train.steps=0", "--set train.steps: train: steps is 0, but must be at least 1."),
        ("mask.share=0.3", "--set mask.share: task = 'translate' does not read [mask]"),
        ("model.d_model=30", "--set model.d_model: model: d_model (30) is not divisible"),
        ("trian.steps=3", "--set trian.steps: unknown key 'trian'; did you mean 'train'?"),
        ("train=3", "--set train: train must be a section, [train]."),
        ("model.preset=gpt2", "--set model.preset: [model]: task = 'translate' needs a model of"),
        ("train.metric=f1", "--set train.metric: [train]: metric = 'f1' is not measured by"),
    ],
)
def test_bad_overrides(path, override, message):
    with pytest.raises(UserError) as error:
        load_recipe(path, [override])
    assert str(error.value).replace(str(path), "r.toml").startswith(message)


def test_the_override_that_another_section_clashes_with_is_named(path):
    path.write_text('task = "classify"\n[train]\nmetric = "loss"\nconsistency = 1.0\n')
    with pytest.raises(UserError, match=r"^--set classify\.kind: \[train\]: consistency needs"):
        load_recipe(path, ["task=classify", "classify.kind=number"])
    with pytest.raises(UserError, match=r"recipe.toml: \[train\]: consistency needs"):
        path.write_text(f"{path.read_text()}[classify]\nkind = 'number'\n")
        load_recipe(path, ["data.valid_size=3"])


def test_values_of_python_may_be_numbers_of_numpy_and_torch():
    train = {"steps": np.int64(3), "lr": np.float32(0.5), "seed": torch.tensor(2)}
    read = recipe_from({"train": {**train, "tensorboard": np.bool_(False)}}).train
    assert read == TrainConfig(steps=3, lr=0.5, seed=2, tensorboard=False)
    assert (type(read.steps), type(read.lr)) == (int, float)
    with pytest.raises(UserError, match=r"steps is 0\.5, but must be a whole number"):
        recipe_from({"train": {"steps": np.float32(0.5)}})


def test_values_of_python_may_be_paths():
    data = {"pairs": Path("a.tsv"), "valid_pairs": [Path("b.tsv"), "c.tsv"]}
    recipe = recipe_from({"data": data})
    assert (recipe.data.pairs, recipe.data.valid_pairs) == (("a.tsv",), ("b.tsv", "c.tsv"))
    assert data["pairs"] == Path("a.tsv")
    for values in ({1: {}}, {"data": {1: 2}}, {"model": {1: 2}}):
        with pytest.raises(UserError, match=r"unknown key '1'"):
            recipe_from(values)


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


def test_only_what_differs_from_the_task_s_defaults_is_written():
    recipe = recipe_from({"task": "classify", "train": {"steps": 1000, "lr": 1e-4}})
    assert recipe_to_dict(recipe) == {"task": "classify", "train": {"lr": 1e-4}}
    number = recipe_from({"task": "classify", "classify": {"kind": "number"}})
    assert number.train.metric == "correlation"
    assert recipe_from(recipe_to_dict(number)) == number


@pytest.mark.parametrize("value", ["label", 1, "translation.en"])
def test_columns_are_named_by_name_number_or_path(value):
    assert recipe_from({"data": {"source_field": value}}).data.source_field == value
    examples = recipe_from({"task": "classify", "data": {"text_field": value}})
    assert examples.data.text_field == (value,)


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 3000, "{a=" * 3000])
def test_numbers_too_long_and_values_too_deep_are_no_toml(tmp_path: Path, value: str) -> None:
    (tmp_path / "bad.toml").write_text(f"[train]\nlr = {value}")
    with pytest.raises(UserError, match=r"bad\.toml is not valid TOML"):
        load_recipe(tmp_path / "bad.toml")
    with pytest.raises(UserError, match="lr is"):
        load_recipe(_empty(tmp_path), [f"train.lr={value}"])


def test_a_recipe_of_a_windows_editor_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbf[train]\r\nsteps = 3\r\n")
    assert load_recipe(tmp_path / "a.toml").train.steps == 3
    (tmp_path / "a.toml").write_text('[data]\ntext = "C:\\a.txt"\n')
    with pytest.raises(UserError, match=r"Unescaped.*backslash in it is written twice"):
        load_recipe(tmp_path / "a.toml")


def test_a_number_that_no_float_holds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="lr is too large"):
        load_recipe(_empty(tmp_path), [f"train.lr={10**400}"])


def test_a_whole_number_of_more_than_64_bits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no_repeat is too large for a whole number of 64 bits"):
        load_recipe(_empty(tmp_path), [f"decode.no_repeat={2**63}"])


def _empty(folder: Path) -> Path:
    (folder / "empty.toml").write_text("")
    return folder / "empty.toml"
