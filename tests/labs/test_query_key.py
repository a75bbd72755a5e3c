"""The language keeps its rule, the scores are the model's own, and cutting cuts."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from qkv.model import Layout, equation, scores, use_path, weights
from qkv_labs import find
from qkv_labs import query_key as lab
from qkv_labs.query_key import sentences
from tests.labs.results import measured


@pytest.mark.parametrize("rule", [True, False])
def test_the_ending_is_the_verbs_own_with_the_rule_alone(rule: bool) -> None:
    made = sentences(300, rule, torch.Generator().manual_seed(0))
    rows = torch.arange(300)
    verbs, objects = made.words[rows, made.verb], made.words[rows, made.object]
    assert (verbs < 6).all() and ((objects >= 6) & (objects < 12)).all()
    assert ((made.words < 12).sum(dim=1) == 2).all()  # no second verb or object
    share = (verbs == made.ending).double().mean().item()
    assert share == 1.0 if rule else 0.05 < share < 0.3
    assert len(set(made.verb.tolist())) == lab.LENGTH  # it stands anywhere


@pytest.mark.parametrize("n_heads", [1, 2])
def test_scores_of_words_give_the_models_own_attention(n_heads: int) -> None:
    model = lab.build(n_heads, 0)
    words = sentences(5, True, torch.Generator().manual_seed(0)).words
    seen = []

    def path(query, key, value, mask, scale, bias=None, dropout=0.0):
        seen.append(weights(scores(query, key, mask, scale, bias)))
        return equation(query, key, value, mask, scale, bias, dropout)

    with use_path(model, path):
        model(words, Layout())
    assert torch.allclose(lab.attention_map(lab.word_scores(model), words).transpose(0, 1), seen[0])


def test_class_scores_are_means_above_each_lookers_own() -> None:
    table = torch.zeros(24, 24)
    table[6:12, :6] = 4.0  # objects look at verbs
    table += torch.randn(24, 1, generator=torch.Generator().manual_seed(0))  # unseen by a softmax
    found = torch.tensor(lab.class_scores(table))  # rows and columns: object, verb, other
    assert torch.allclose(found[0], torch.tensor([-1.0, 3.0, -1.0]), atol=1e-5)
    assert torch.allclose(found[1:], torch.zeros(2, 3), atol=1e-5)


def test_a_silenced_head_adds_nothing_and_the_other_is_left_alone() -> None:
    model, x = lab.build(2, 0), torch.randn(1, 3, 32)
    cut = lab.attention_of(lab.without_head(model, 1)).output
    kept = lab.attention_of(model).output
    assert torch.allclose(cut(x), kept(torch.cat([x[..., :16], torch.zeros(1, 3, 16)], dim=-1)))
    assert kept.weight[:, 16:].any()  # the model itself is not touched


def test_training_forms_the_look_and_cutting_it_brings_the_error_back() -> None:
    one = lab.course(True, 1, seed=0, n_steps=80, n_looks=4)
    assert one.steps == [0, 20, 40, 60, 80] and len(one.maps) == len(one.loss) == 5
    assert one.attention[0] < 0.25 < 0.8 < one.attention[-1]
    assert one.aligned[-1] > one.aligned[0] + 2
    assert one.error < 0.05 and one.unseen_other < 0.2
    assert min(one.silenced, one.unseen_verb) > 0.6
    example = torch.tensor(one.maps[-1])
    assert torch.allclose(example.sum(dim=-1), torch.ones(8), atol=1e-5)


def test_without_a_rule_no_look_forms() -> None:
    one = lab.course(False, 1, seed=0, n_steps=80, n_looks=2)
    assert one.attention[-1] < 0.3 and one.error > 0.6


def test_the_animation_has_a_picture_a_look(tmp_path: Path) -> None:
    courses = measured(find("query_key")).courses
    short = [replace(one, steps=one.steps[::29], maps=one.maps[::29]) for one in courses]
    lab.animate(lab.Measured(short), tmp_path / "map.gif")
    with Image.open(tmp_path / "map.gif") as image:
        assert image.format == "GIF" and image.n_frames >= 2  # the last one stays a while
        first = image.convert("RGB").tobytes()
        image.seek(1)
        assert image.convert("RGB").tobytes() != first
