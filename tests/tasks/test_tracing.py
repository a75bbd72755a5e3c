"""A task's trace is of the very pass that the task runs."""

from typing import Any

import numpy as np
import pytest
import torch

from qkv.errors import UserError
from qkv.tasks import Answerer, Encoder, Tagger, Translator
from qkv.tasks.answer import Answers
from qkv.tasks.tag import Tags
from tests.run.language_tiny import speaker, vocabulary
from tests.tasks.test_encoder import build
from tests.tasks.test_texts import MODELS
from tests.tasks.test_vision import classifier as image_classifier
from tests.tasks.test_vision import images
from tests.tasks.understand_tiny import TOKENIZER, classifier, encoder

LONG = "the cat sees a dog and the cat sees a dog"


def test_a_translation_is_traced_as_it_was_decoded(translator: Translator):
    text = "one two three"
    trace = translator.trace(text, beams=1)
    best = translator.n_best([text], beams=1)[0][0]
    steps = trace.steps()
    assert all(step.rank == 1 for step in steps)  # greedy takes the best at each step
    labels = trace["target.labels"][0].tolist()
    assert translator.tokenizers.target.decode(labels) == best.text
    assert -float(trace["loss"]) * len(labels) == pytest.approx(best.log_probability, abs=1e-4)


def test_a_translation_of_ones_own_is_scored(translator: Translator):
    trace = translator.trace("one two", "2 1")
    config = translator.model.config
    ids = translator.tokenizers.target.encode("2 1")
    assert trace["target.tokens"][0].tolist() == [config.bos_id, *ids]
    assert trace["target.labels"][0].tolist() == [*ids, config.eos_id]
    assert trace["source.tokens"][0, -1] == config.eos_id
    assert trace.tokens("target")[0] == "<bos>"


def test_many_texts_are_one_batch(translator: Translator):
    together = translator.trace(["one", "one two three"], ["1", "1 2 3"])
    alone = translator.trace("one", "1")
    length = len(alone.tokens("target"))
    torch.testing.assert_close(
        together["logits"][0, :length], alone["logits"][0], atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("given", [None, 3, ["a", 3]])
@pytest.mark.parametrize("name", sorted({*MODELS} - {"score"}))
def test_what_is_no_text_is_refused(name: str, given: Any) -> None:
    with pytest.raises(UserError, match=r"(was given; give a string or several|is 3, of type int)"):
        MODELS[name]().trace(given)


def test_an_answer_is_traced_in_a_pair() -> None:
    with pytest.raises(UserError, match="must be a pair: a question and a text"):
        Answerer(encoder(head="token", n_labels=2), TOKENIZER, Answers()).trace("who?")  # type: ignore[arg-type]


def test_blank_texts_and_missing_targets_are_refused(translator: Translator):
    with pytest.raises(UserError, match="blank text"):
        translator.trace(" ")
    with pytest.raises(UserError, match="2 texts but 1 targets"):
        translator.trace(["one", "two"], ["1"])
    with pytest.raises(UserError, match="reads at most"):
        translator.trace("one", "1 " * 500)


@pytest.fixture(scope="module")
def language():
    return speaker(vocabulary("bpe"), seed=3)


def test_a_language_models_loss_is_its_score(language):
    text = "the cat sees a fish"
    trace, score = language.trace(text), language.score(text)
    count = len(score.log_probabilities)
    total = -float(trace["loss"]) * count
    assert total == pytest.approx(sum(score.log_probabilities), abs=1e-3)


def test_a_target_alone_counts(language):
    trace = language.trace("the cat", " sees")
    labels = trace["target.labels"][0]
    kept = labels[labels >= 0].tolist()
    assert language.tokenizer.decode(kept).strip() == "sees"
    whole = language.encode("the cat sees")
    assert trace["target.tokens"][0].tolist() == whole


def test_a_classifiers_trace_says_what_it_says():
    model = classifier()
    trace = model.trace("the cat", "b")
    (logits,) = model.logits(["the cat"])
    torch.testing.assert_close(
        trace["probabilities"][0], logits.softmax(-1), check_dtype=False, atol=1e-5, rtol=1e-5
    )
    assert float(trace["loss"]) == pytest.approx(-float(logits.log_softmax(-1)[1]), abs=1e-5)
    assert trace.steps()[0].candidates[0].name == model.classify("the cat").label
    with pytest.raises(UserError, match="'d' is not a label of this model; it has a, b, c"):
        model.trace("the cat", "d")
    with pytest.raises(UserError, match="longer than the model's context"):
        model.trace(LONG)


def test_classes_that_come_together_and_numbers():
    both = classifier(kind="classes").trace("the cat", "a|c")
    assert both["target.labels"].tolist() == [[1, 0, 1]]
    torch.testing.assert_close(
        both["probabilities"], both["logits"].sigmoid(), check_dtype=False, atol=1e-6, rtol=1e-5
    )
    number = classifier(("x",), kind="number", mean=3.0, deviation=2.0).trace("the cat", "5")
    assert number["target.labels"].tolist() == [[1.0]]
    assert "probabilities" not in number
    assert float(number["loss"]) == pytest.approx(float((number["logits"][0, 0] - 1) ** 2))


def test_a_pair_has_two_segments():
    trace = classifier().trace(("the cat", "a dog"))
    assert trace.inputs.segments[0].tolist() == [0] * 9 + [1] * 6


def test_an_encoders_gaps_are_guessed_as_fill_guesses():
    model = build()
    words = model.tokenizer
    text, gapped = "the cat sat on the mat", "the cat <mask> on the mat"
    trace = model.trace(gapped)
    place = trace["source.tokens"][0].tolist().index(words.mask_id)
    (best,) = model.fill(gapped, top_k=3).masks
    probable, never = trace["probabilities"][0, place], set(words.special_ids)
    ranked = [id for id in probable.argsort(descending=True).tolist() if id not in never]
    assert [one.token for one in best] == ranked[:3]
    labels = model.trace(gapped, text)["target.labels"][0].tolist()
    assert [at for at, label in enumerate(labels) if label >= 0] == [place]
    with pytest.raises(UserError, match="as many gaps"):
        model.trace(gapped, "the cat sat down on the mat, and slept")


def test_an_encoder_without_a_head_pools_as_embed():
    model = Encoder(encoder(head="none", n_labels=0), TOKENIZER)
    trace = model.trace("the cat sees")
    vector = model.embed("the cat sees", normalize=False)
    torch.testing.assert_close(trace["pooled"][0], vector.double(), atol=1e-5, rtol=1e-5)
    assert "logits" not in trace
    with pytest.raises(UserError, match="trace it without a target"):
        model.trace("the cat", "the dog")


def test_a_taggers_trace_has_labels_on_first_tokens():
    tagger = Tagger(encoder(head="token", n_labels=2), TOKENIZER, Tags(("O", "X"), "none"))
    trace = tagger.trace("the cat", ["O", "X"])
    labels = trace["target.labels"][0].tolist()
    assert [at for at, label in enumerate(labels) if label >= 0] == [1, 5]
    scores = tagger.scores([["the", "cat"]])[0]
    torch.testing.assert_close(
        trace["logits"][0, [1, 5]].log_softmax(-1), scores.double(), atol=1e-5, rtol=1e-5
    )
    with pytest.raises(UserError, match="2 words need as many labels"):
        tagger.trace("the cat", ["O"])


def test_an_answer_is_two_places():
    answerer = Answerer(encoder(head="token", n_labels=2), TOKENIZER, Answers())
    trace = answerer.trace(("no", "a cat sees"), "cat")
    names = trace.tokens("source")
    start, end = trace["target.labels"][0].tolist()
    assert "".join(names[start : end + 1]) == "cat"
    assert [step.after for step in trace.steps()] == ["start", "end"]
    with pytest.raises(UserError, match="does not contain the answer 'dog'"):
        answerer.trace(("no", "a cat sees"), "dog")


def test_an_images_tokens_are_its_patches():
    model = image_classifier()
    image = images(1)[0]
    trace = model.trace(image, "dog")
    assert trace.tokens("source")[:2] == ["[first]", "0,0"]
    assert len(trace.tokens("source")) == trace["source.input"].shape[1]
    expected = model.classify(np.asarray(image)).probabilities
    assert trace["probabilities"][0].tolist() == pytest.approx(list(expected.values()), abs=1e-6)
    for key in trace:
        assert tuple(trace[key].shape) == trace.shape(key)
