"""What the lab of teacher forcing measures."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.config import DecodeConfig
from qkv.decode import generate
from qkv.model import EncoderDecoder
from qkv_labs import teacher_forcing as lab
from qkv_labs.shared import EncodedPairs

V = 12


@pytest.fixture(scope="module")
def work() -> lab.Work:
    draw = np.random.default_rng(0)
    texts = [draw.integers(4, V, size=draw.integers(2, 6)).tolist() for _ in range(40)]
    pairs = EncodedPairs(texts, [text[::-1] for text in texts])
    sizes = {
        "vocab_size": V,
        "d_model": 16,
        "n_heads": 2,
        "d_ff": 16,
        "max_length": 16,
        "n_layers": 1,
    }
    return lab.Work(pairs, pairs, sizes, steps=25, rows=8)


@pytest.fixture(scope="module")
def model(work: lab.Work) -> EncoderDecoder:
    return lab.train(work, seed=0, way=lab.FORCED)[0]


def test_one_pass_is_as_many_steps_as_there_are_positions(
    model: EncoderDecoder, work: lab.Work
) -> None:
    difference, passes = lab.compared(model, work)
    assert difference < 1e-12
    assert passes == max(map(len, work.held_out.targets)) + 1


def test_a_decoder_that_sees_what_comes_differs_step_by_step(
    model: EncoderDecoder, work: lab.Work
) -> None:
    model.decoder.causal = False
    difference, _ = lab.compared(model, work)
    model.decoder.causal = True
    assert difference > 1e-6


def test_exact_matches_are_the_sentences_without_error_after_the_true_prefix(
    model: EncoderDecoder, work: lab.Work
) -> None:
    found = lab.judged(model, work, seed=0)
    with torch.no_grad():
        batch = work.held_out.batch(range(40), model.config)
        right = (lab.logits_of(model, batch).argmax(-1) == batch.labels) | (batch.labels < 0)
    assert found.exact == pytest.approx(100 * right.all(1).float().mean().item())
    assert found.own_prefix[0] == found.true_prefix[0]  # before the first word both are BOS


def test_errors_of_own_prefixes_are_those_of_greedy_translations(
    model: EncoderDecoder, work: lab.Work
) -> None:
    batch = work.held_out.batch(range(40), model.config)
    found = generate(model, batch.source, batch.layout.lengths, DecodeConfig(beams=1))
    lines = [[token for token in line if token >= 0] for line in batch.labels.tolist()]
    outputs = [[*best[0].tokens, model.config.eos_id] for best in found]
    wrong = [lab.aligned_errors(*pair)[1] for pair in zip(outputs, lines, strict=True)]
    assert lab.judged(model, work, 0).own_prefix[1] == pytest.approx(100 * np.mean(wrong))


@given(st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 3), max_size=6))
@settings(max_examples=60, deadline=None)
def test_edit_distance_is_its_recursion(left: list[int], right: list[int]) -> None:
    def distance(a: tuple[int, ...], b: tuple[int, ...]) -> int:
        if not a or not b:
            return len(a) + len(b)
        if a[0] == b[0]:
            return distance(a[1:], b[1:])
        return 1 + min(distance(a[1:], b), distance(a, b[1:]), distance(a[1:], b[1:]))

    edits = lab.edit_table(left, right)[-1][-1]
    assert edits == distance(tuple(left), tuple(right))
    # an alignment finds at most the tokens that remain, and none that edits have to make
    errors = lab.aligned_errors(left, right)
    assert max(0, len(right) - len(left)) <= sum(errors) <= edits


def test_one_word_too_many_leaves_the_others_right() -> None:
    assert lab.aligned_errors([5, 9, 6, 7], [5, 6, 7]) == [False] * 3
    assert lab.aligned_errors([6, 7], [5, 6, 7]) == [True, False, False]
    assert lab.aligned_errors([5, 8, 7], [5, 6, 7]) == [False, True, False]


def test_drift_is_counted_from_the_first_slip_on() -> None:
    wrong = torch.tensor([[0, 1, 1, 0]]).bool()
    # after the slip: 6 7 3 for 7 3
    _, _, own, true = lab.after_slips([[5, 9, 6, 7, 3]], [[5, 6, 7, 3]], wrong)
    assert own[:2] == [0.0, 0.0]
    assert true[:2] == [100.0, 0.0]


def test_free_running_reads_what_the_model_would_write(
    model: EncoderDecoder, work: lab.Work
) -> None:
    batch = work.held_out.batch(range(8), model.config)
    read = lab.own_input(model, batch)
    assert torch.equal(read[:, 0], batch.target[:, 0])
    with torch.no_grad():
        guesses = lab.logits_of(model, batch, read).argmax(dim=-1)
    assert torch.equal(read[:, 1:], guesses[:, :-1])


def test_what_comes_after_a_slip_is_counted_by_edits() -> None:
    outputs = [[5, 9, 6, 7, 3], [4, 4, 3], [8, 3]]  # a word too many; two changed; without slip
    references = [[5, 6, 7, 3], [4, 5, 6, 3], [8, 3]]
    wrong = torch.tensor([[0, 1, 0, 1], [0, 1, 1, 0], [0, 0, 0, 0]]).bool()
    # After the slips: [6, 7, 3] for [7, 3] is 1 edit, [3] for [6, 3] another; 4 tokens remained.
    assert lab.after_slips(outputs, references, wrong)[:2] == (50.0, 50.0)


def test_own_guesses_stand_one_place_after_where_they_were_made() -> None:
    target = torch.tensor([[2, 5, 6, 7]])
    guesses = torch.tensor([[8, 9, 10, 11]])
    generator = torch.Generator().manual_seed(0)
    assert lab.mixed_input(target, guesses, 1.0, generator).tolist() == [[2, 8, 9, 10]]
    assert lab.mixed_input(target, guesses, 0.0, generator).tolist() == [[2, 5, 6, 7]]
    many = lab.mixed_input(target.expand(4000, 4), guesses.expand(4000, 4), 0.25, generator)
    assert (many[:, 1:] > 7).float().mean().item() == pytest.approx(0.25, abs=0.02)


def test_a_decoder_deaf_to_its_prefix_is_not_hurt_by_a_wrong_token(
    model: EncoderDecoder, work: lab.Work
) -> None:
    deaf = EncoderDecoder(model.config).eval()
    deaf.load_state_dict(model.state_dict())
    separate = torch.nn.Embedding(V, 16)  # every input looks like every other
    torch.nn.init.zeros_(separate.weight)
    batch = work.held_out.batch(range(40), model.config)
    with torch.no_grad():
        hurt, unhurt = lab.spoilt_errors(model, batch, lab.logits_of(model, batch), 0)
        deaf.target_embedding = torch.nn.Sequential(separate)  # type: ignore[assignment]
        spoilt, unspoilt = lab.spoilt_errors(deaf, batch, lab.logits_of(deaf, batch), 0)
    assert spoilt == unspoilt
    assert hurt != unhurt


def test_the_spoilt_token_is_the_likeliest_of_the_wrong_ones(
    model: EncoderDecoder, work: lab.Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = work.held_out.batch(range(40), model.config)
    logits = 2.0 * torch.nn.functional.one_hot(batch.labels.clamp(min=0), V)  # always right,
    logits[..., 1] = 1.0  # and next to that for token 1, which stands nowhere
    seen: list[torch.Tensor] = []

    def spy(model: object, batch: object, target: torch.Tensor) -> torch.Tensor:
        seen.append(target)
        return logits

    monkeypatch.setattr(lab, "logits_of", spy)
    lab.spoilt_errors(model, batch, logits, 0)
    changed = seen[0] != batch.target
    assert changed.sum(dim=1).tolist() == [1] * 40
    assert set(seen[0][changed].tolist()) == {1}
    assert not changed[:, 0].any()


def test_both_ways_begin_alike_and_part(work: lab.Work) -> None:
    start = dataclasses.replace(work, steps=1)
    ways = (lab.FORCED, lab.SCHEDULED, lab.FREE)
    weights = [lab.train(start, 0, way)[0].output.projection.weight for way in ways[:2]]
    assert torch.equal(*weights)
    ends = [lab.train(work, 0, way)[0].output.projection.weight for way in ways]
    assert not torch.equal(*ends[:2]) and not torch.equal(*ends[1:])
