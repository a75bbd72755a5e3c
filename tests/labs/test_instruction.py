"""Lab 22: the made-up world keeps its secrets, models are asked fairly, and the verdict follows."""

from __future__ import annotations

import math

import torch

from qkv_labs import instruction as lab
from qkv_labs.instruction.people import BOTH, NEW_PEOPLE, NEW_WORDS, RELATIONS, World

TINY = lab.Sizes(d_model=16)
WORLD = World(0, 6, 4)


def test_what_is_asked_was_not_tuned_on() -> None:
    tuned = {question for question, _ in WORLD.tuning}
    people = set(WORLD.people[:4])
    assert len(tuned) == 4 * 9
    for kind, questions in WORLD.tests.items():
        asked = {question for question, _ in questions}
        assert not asked & tuned
        about_known = {any(person in question for person in people) for question in asked}
        assert about_known == {kind == NEW_WORDS}
    sizes = {kind: len(questions) for kind, questions in WORLD.tests.items()}
    assert sizes == {NEW_PEOPLE: 2 * 9, NEW_WORDS: 4 * 6, BOTH: 2 * 6}


def test_answers_are_what_the_text_says() -> None:
    text = " ".join(WORLD.paragraphs(200, "train"))
    for sentence, value in WORLD.gaps:
        assert f"{sentence} {value}." in text
    known = {value for relation in RELATIONS for value in relation.values}
    for questions in (*WORLD.tests.values(), WORLD.tuning):
        for question, answer in questions:
            assert answer in known
            assert not known & set(question.strip("?.").split())  # no question gives it away


def test_names_are_distinct_and_worlds_differ() -> None:
    world = World(1, 48, 36)
    assert len(set(world.people)) == 48
    assert world.people != World(2, 48, 36).people
    assert world.facts == World(1, 48, 36).facts
    assert world.paragraphs(5, "train") != world.paragraphs(5, "held out")


def test_new_wordings_ask_with_words_that_the_text_has() -> None:
    for relation in RELATIONS:
        said = set(" ".join(relation.said).split())
        taught = set(" ".join(relation.asked).split())
        for wording in relation.asked_anew:
            assert {word for word in wording.split() if word in said - taught} - {"of", "the"}


def test_only_answers_are_learnt_in_tuning_and_all_of_plain_text() -> None:
    tokenizer = lab.tokenizer_of(WORLD)
    question, answer = WORLD.tuning[0]
    [(tokens, counts)] = lab.tuning_examples([(question, answer)], tokenizer)
    learnt = [token for token, counted in zip(tokens, counts, strict=True) if counted]
    assert learnt[-1] == tokenizer.eos_id
    assert tokenizer.decode(learnt[:-1]).strip() == answer
    plain = lab.plain_examples(["a b.", "c."], tokenizer)
    assert all(all(counts) for _, counts in plain)
    assert [tokens[0] for tokens, _ in plain] == [tokenizer.bos_id] * 2


def test_a_model_that_knows_nothing_has_the_vocabulary_s_perplexity() -> None:
    tokenizer = lab.tokenizer_of(WORLD)
    model = lab.build(TINY, tokenizer)
    torch.nn.init.zeros_(model.output.projection.weight)  # and with it the embedding
    found = lab.perplexity(model, lab.plain_examples(WORLD.paragraphs(8, "x"), tokenizer))
    assert math.isclose(found, len(tokenizer), rel_tol=1e-4)


def test_a_model_that_was_told_the_answers_gives_them() -> None:
    """Tuned on the test itself: then, and only then, all must be right."""
    world = World(0, 2, 1)
    tokenizer = lab.tokenizer_of(world)
    told = [pair for questions in world.tests.values() for pair in questions]
    model = lab.build(lab.Sizes(d_model=32), tokenizer)
    before = lab.examine(model, world, tokenizer)
    assert max(before.exact.values()) < 20
    lab.learn(model, lab.tuning_examples(told, tokenizer), 80, 1e-2, 0)
    after = lab.examine(model, world, tokenizer)
    assert min(after.exact.values()) == 100
    assert after.mentions == after.exact


def test_an_answer_may_be_mentioned_without_being_given() -> None:
    said = ["it is oslo.", "rome", "a cat", ""]
    assert lab.share_mentioned(said, ["oslo", "rome", "ca", "lima"]) == 50
