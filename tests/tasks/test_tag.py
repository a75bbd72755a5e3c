"""A tagger: one label a word, valid together, at the right places, whatever the length."""

import dataclasses
import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.errors import UserError
from qkv.tasks import Tagger, Tagging
from qkv.text import Tokenizer
from qkv.text.tagging import OUTSIDE, Scheme, entities, may_follow
from tests.run.tag_tiny import FILLERS, FIRST, PLACES, sentences, tagger, vocabulary

TEXTS = [
    "anna sees paris .",
    "",
    "王小明在北京，很好。",
    "bob 👩\u200d🚀 goes to new york!!",
    "   ",
    "x",
    "very " * 30 + "old house",
    "\tthe  old\u3000house ",
]
SCHEMES: list[Scheme] = ["iob1", "iob2", "bioes"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return vocabulary()


@pytest.fixture(scope="module")
def untaught(tokenizer: Tokenizer) -> Tagger:
    return tagger(tokenizer)


def same(one: Tagging, other: Tagging) -> bool:
    """Equal but for rounding."""
    plain = [dataclasses.replace(each, probabilities=(), entities=()) for each in (one, other)]
    sure = [[*each.probabilities, *(e.probability for e in each.entities)] for each in (one, other)]
    names = [[(e.type, e.text, e.start, e.end) for e in each.entities] for each in (one, other)]
    return plain[0] == plain[1] and names[0] == names[1] and sure[0] == pytest.approx(sure[1])


def is_valid(labels: tuple[str, ...], scheme: Scheme) -> bool:
    pairs = pairwise([OUTSIDE, *labels, OUTSIDE])
    return all(may_follow(before, after, scheme) for before, after in pairs)


def test_many_are_the_same_as_each_by_itself(untaught: Tagger) -> None:
    together = untaught.tag(TEXTS)
    assert [one.text for one in together] == TEXTS
    assert all(same(one, untaught.tag(text)) for one, text in zip(together, TEXTS, strict=True))


def test_the_answer_is_the_likeliest_of_all_valid_ones(untaught: Tagger) -> None:
    """Compared with every sequence of labels that there is."""
    words = ("anna", "sees", "paris", "stone")
    [scores] = untaught.scores([words])
    assert scores.exp().sum(dim=1).tolist() == pytest.approx([1.0] * 4)
    labels = untaught.tags.labels
    every = torch.cartesian_prod(*[torch.arange(len(labels))] * 4).tolist()
    valid = [path for path in every if is_valid(tuple(labels[place] for place in path), "iob2")]
    best = max(valid, key=lambda path: sum(float(scores[i, p]) for i, p in enumerate(path)))
    found = untaught.tag(words)
    assert found.labels == tuple(labels[place] for place in best)
    assert list(best) != scores.argmax(dim=1).tolist()  # or this test would show nothing
    expected = [math.exp(scores[i, p]) for i, p in enumerate(best)]
    assert found.probabilities == pytest.approx(expected)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_labels_are_always_valid_together(tokenizer: Tokenizer, scheme: Scheme) -> None:
    model = tagger(tokenizer, scheme)
    words = [one.words for one in sentences(60, seed=7)]
    found = model.tag([*words, tuple(FILLERS * 12)])
    assert all(is_valid(one.labels, scheme) for one in found)
    assert len({label for one in found for label in one.labels}) > 3
    free = [scores.argmax(dim=1).tolist() for scores in model.scores(words)]
    named = [tuple(model.tags.labels[place] for place in path) for path in free]
    assert not all(is_valid(one, scheme) for one in named)  # the search had something to do


def test_without_a_scheme_each_word_has_its_likeliest_label(tokenizer: Tokenizer) -> None:
    model = tagger(tokenizer, scheme=None)
    words = sentences(5)[3].words
    [scores] = model.scores([words])
    found = model.tag(words)
    assert found.labels == tuple(model.tags.labels[place] for place in scores.argmax(dim=1))
    assert found.probabilities == pytest.approx(scores.exp().amax(dim=1).tolist())
    assert found.entities == ()


def test_entities_are_what_the_labels_spell(untaught: Tagger) -> None:
    seen = 0
    for one in untaught.tag([*TEXTS, *(sentence.words for sentence in sentences(20))]):
        spelt = entities(one.labels, "iob2")
        assert [entity.type for entity in one.entities] == [entity.kind for entity in spelt]
        for entity, (_, first, end) in zip(one.entities, spelt, strict=True):
            assert (entity.start, entity.end) == (one.spans[first][0], one.spans[end - 1][1])
            assert entity.text == one.text[entity.start : entity.end]
            assert entity.probability == pytest.approx(math.prod(one.probabilities[first:end]))
            seen += 1
    assert seen > 20


def test_places_are_characters_of_the_text(untaught: Tagger) -> None:
    text = " 王小明👩\u200d🚀 sees  paris,\tok"
    found = untaught.tag(text)
    expected = ["王", "小", "明", "👩\u200d🚀", "sees", "paris", ",", "ok"]
    assert list(found.words) == expected
    assert [text[start:end] for start, end in found.spans] == expected
    assert found.spans[3:5] == ((4, 7), (8, 12))


def test_given_words_are_kept_as_they_are(untaught: Tagger) -> None:
    words = ("new york", "can't", "北京", "😀")
    found = untaught.tag(words)
    assert found.words == words
    assert found.text == "new york can't 北京 😀"
    assert [found.text[start:end] for start, end in found.spans] == list(words)
    assert same(untaught.tag([list(words)])[0], found)
    text = untaught.tag("can't")
    assert text.words == ("can", "'", "t")


def test_nothing_gives_nothing(untaught: Tagger) -> None:
    assert untaught.tag([]) == []
    assert untaught.tag("") == Tagging("", (), (), (), (), ())
    assert untaught.tag(" \u3000") == Tagging(" \u3000", (), (), (), (), ())
    assert untaught.tag(()) == untaught.tag("")


WINDOWED: dict[str, Tagger] = {}
LONG = "abcdefghijklmnop" * 4
WORDS = st.lists(st.sampled_from([*FIRST, *PLACES, *FILLERS, LONG]), max_size=40)


@given(st.lists(WORDS, max_size=3))
def test_each_word_is_in_the_care_of_one_window(sentences: list[list[str]]) -> None:
    if not WINDOWED:
        WINDOWED["model"] = tagger(vocabulary(), max_length=16)
    model = WINDOWED["model"]
    found = model.frame(sentences)
    cared = [(part.sentence, word) for part in found for word in part.words]
    numbers = [(n, i) for n, words in enumerate(sentences) for i in range(len(words))]
    assert sorted(cared) == numbers
    for part in found:
        assert len(part.framed.tokens) <= 16
        spelt = model.tokenizer.encode_words([sentences[part.sentence]])[0]
        for word, place in zip(part.words, part.places, strict=True):
            assert part.framed.tokens[place] == spelt.ids[spelt.word.index(word)]
        start = spelt.word.index(part.words[0]) - part.places[0] + 1
        edges = {start, start + len(part.framed.tokens) - 2}
        between = {spelt.word.index(word) for word in set(spelt.word)} | {len(spelt.ids)}
        assert edges <= between or LONG in sentences[part.sentence]  # which must be torn


def test_a_long_sentence_is_read_in_windows(tokenizer: Tokenizer) -> None:
    """Each word's scores are those of the window in which it stands farthest from an edge."""
    model = tagger(tokenizer, max_length=14)
    words = list("天地玄黄宇宙洪荒日月盈昃辰宿列张")
    ids = model.tokenizer.encode_words([words])[0].ids
    assert len(ids) == 3 * len(words)  # in bytes
    starts = [0, 6, 12, 18, 24, 30, 36]  # twelve fit, six of which the next one has as well
    framed = [model.reader.frame(ids[start : start + 12]) for start in starts]
    alone = dict(zip(starts, model.reader.run(framed), strict=True))
    [scores] = model.scores([words])
    for number, said in enumerate(scores):
        token = 3 * number
        around = {
            start: min(token - start, start + 11 - token)
            for start in starts
            if start <= token < start + 12
        }
        best = max(around, key=lambda start: around[start])
        expected = alone[best][token - best + 1].log_softmax(dim=-1)
        assert said.tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    found = model.tag(tuple(words))
    assert len(found.labels) == 16
    assert is_valid(found.labels, "iob2")


def test_a_word_that_is_no_text_is_named(untaught: Tagger) -> None:
    with pytest.raises(UserError, match="Text 1 holds bytes that are not UTF-8"):
        untaught.tag(("anna", "\udce9"))
