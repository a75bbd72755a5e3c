"""Forms of masks, leaks that a broken mask would show, and losses by brute force."""

import math

import pytest
import torch
import torch.nn.functional as F

from qkv.model import Decoder, Layout, Mask
from qkv_labs import masks as lab
from qkv_labs.masks import Text
from qkv_labs.tools import IGNORE

SENTENCES = [[3, 4, 5], [6, 7, 8, 9, 3], [4, 4], [9, 8, 7, 6]]


def model(masked: bool) -> Decoder:
    return lab.build(12, masked, 0)


def test_the_boolean_form_is_a_softmax_over_what_is_visible() -> None:
    query, key, value = torch.randn(3, 1, 1, 4, 8, dtype=torch.float64)
    made = lab.by_boolean(query, key, value, Mask(causal=True), 0.5)[0, 0]
    for t in range(4):
        share = torch.softmax(query[0, 0, t] @ key[0, 0, : t + 1].T * 0.5, dim=-1)
        assert torch.allclose(made[t], share @ value[0, 0, : t + 1])


def test_all_forms_agree_on_every_mask() -> None:
    found = lab.forms(0, length=12)
    assert {one.mask for one in found} >= {"causal", "padding", "packed"}
    for one in found:
        assert max(one.boolean, one.fast) < (1e-12 if one.precision == "float64" else 2e-6)


def test_where_nothing_is_visible_only_this_package_gives_zeros() -> None:
    assert list(lab.blind().values()) == ["NaN", "what is hidden", "zeros", "zeros"]


def test_no_logit_before_a_changed_token_moves_unless_the_mask_is_off() -> None:
    found = lab.leaks(model(True), SENTENCES, 0)
    assert {(one.change, one.path) for one in found} == {
        (change, path) for change in ("the future", "padding") for path in ("equation", "fast")
    }
    for one in found:
        assert one.hidden <= 1e-6 and one.shown > 1e-3


def test_a_batch_is_shifted_by_one() -> None:
    inputs, labels, layout = lab.batch([[5, 6], [7]])
    assert inputs.tolist() == [[1, 5, 6], [1, 7, 0]]
    assert labels.tolist() == [[5, 6, 2], [7, 2, IGNORE]]
    assert layout.lengths is not None and layout.lengths.tolist() == [3, 2]


@pytest.mark.parametrize("masked", [True, False])
def test_the_loss_alone_is_that_of_each_beginning_by_itself(masked: bool) -> None:
    one = model(masked)
    said = []
    for sentence in SENTENCES:
        for end in range(len(sentence) + 1):
            logits = one(torch.tensor([[lab.BOS, *sentence[:end]]]), Layout())[0, -1]
            answer = torch.tensor([*sentence, lab.EOS][end])
            said.append(F.cross_entropy(logits, answer).item())
    assert lab.loss_alone(one, SENTENCES) == pytest.approx(sum(said) / len(said), rel=1e-4)


def test_writing_ends_at_the_end_and_repeats() -> None:
    one = model(True)
    first, again = (lab.write(one, 20, torch.Generator().manual_seed(0)) for _ in range(2))
    assert first == again
    assert all(lab.EOS not in line and len(line) <= lab.LONGEST for line in first)


def test_a_sound_sentence_has_known_neighbours_and_three_words() -> None:
    known = lab.pairs([3, 4, 5]) | lab.pairs([3, 5])
    assert known == {(1, 3), (3, 4), (4, 5), (5, 2), (3, 5)}
    assert lab.sound([[3, 4, 5], [3, 5], [3, 4], [5, 4, 3]], known) == 1 / 4
    assert lab.sound([[]], lab.pairs([])) == 0.0


def test_without_the_mask_a_model_learns_to_copy_what_no_one_could_foresee() -> None:
    """Words drawn at random: nothing can be learnt of the next one but its frequency."""
    generator = torch.Generator().manual_seed(0)
    lines = torch.randint(3, 9, (2000, 5), generator=generator).tolist()
    text = Text(["<pad>", "<bos>", "<eos>", *"abcdef"], lines, lines)
    held = {}
    for masked in (True, False):
        one, _ = lab.train(text, masked, seed=0, n_steps=120)
        with torch.no_grad():
            held[masked] = lab.loss_of(one, lines[:100]).item()
    assert held[True] > 0.95 * 5 / 6 * math.log(6)  # five words of six, and an end that is sure
    assert held[False] < 0.5 * held[True]
