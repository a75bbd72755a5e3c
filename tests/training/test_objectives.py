"""Each objective against torch's own loss, or against loops, on models in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.config import TeacherConfig, TrainConfig
from qkv.data.batch import IGNORE, Batch, Side
from qkv.model import Encoder, Layout, own_call, use_regions
from qkv.training import (
    Objective,
    accumulate,
    build_loss,
    consistent_next_token,
    contrast,
    layout_of,
    many_classes,
    masked_tokens,
    next_token,
    number,
    one_class,
    spans,
    token_labels,
)
from qkv.training.objectives import distillation
from tests.model.tiny import VOCAB, tiny_model
from tests.training.helpers import CPU, padded, padded_side, some_texts
from tests.training.helpers import packed as packed_pairs

LENGTHS = [5, 3, 9, 2, 7]
N_LABELS = 4


def encoder(**differences: Any) -> Encoder:
    """A small encoder whose every weight matters, segments and poolers as well."""
    torch.manual_seed(0)
    values = {
        "family": "encoder",
        "n_decoder_layers": 0,
        "n_encoder_layers": 2,
        "n_segments": 2,
        "pooler": "tanh",
        "tie": "output",
        "dropout": 0.0,
    }
    return tiny_model(**{**values, **differences})


def labeller(head: str = "sequence", n_labels: int = N_LABELS, **differences: Any) -> Encoder:
    return encoder(head=head, n_labels=n_labels, **differences)


def texts_of(lengths: Sequence[int] = LENGTHS) -> list[list[int]]:
    draw = np.random.default_rng(3)
    return [draw.integers(4, VOCAB, n).tolist() for n in lengths]


def batch_of(labels: Any, indices: Sequence[int] | None = None, by_token: bool = False) -> Batch:
    """Padded texts in two segments each, and a label for each of them or of all their tokens."""
    indices = list(indices or range(len(LENGTHS)))
    texts = [texts_of()[index] for index in indices]
    side = padded_side(texts)
    assert side.lengths is not None
    columns = torch.arange(side.tokens.shape[1])
    second = (columns >= side.lengths[:, None] // 2) & (columns < side.lengths[:, None])
    side = replace(side, segments=second.long())
    if not by_token:
        chosen = torch.as_tensor(np.asarray(labels)[indices])
        return Batch(None, side, chosen, len(indices))
    rows = torch.as_tensor(labels).split(LENGTHS)
    table = torch.full(side.tokens.shape, IGNORE)
    for row, index in enumerate(indices):
        table[row, : LENGTHS[index]] = rows[index]
    positions = (table.flatten() != IGNORE).nonzero()[:, 0]
    return Batch(None, side, table.flatten()[positions], len(positions), positions)


def packed(batch: Batch) -> Batch:
    """The same sequences end to end, and an empty one after them."""
    lengths, width = batch.target.lengths, batch.target.tokens.shape[1]
    assert lengths is not None and batch.positions is not None and batch.target.segments is not None
    real = torch.arange(width) < lengths[:, None]
    offsets = torch.cat([torch.zeros(1), lengths.cumsum(0), lengths.sum()[None]]).int()
    row, column = batch.positions // width, batch.positions % width
    side = Side(
        batch.target.tokens[real][None],
        None,
        offsets,
        int(lengths.max()),
        segments=batch.target.segments[real][None],
    )
    pairs = None if batch.pairs is None else F.pad(batch.pairs, (0, 1), value=IGNORE)
    return Batch(None, side, batch.labels, batch.n_labels, offsets[row] + column, pairs)


def said(model: Encoder, batch: Batch) -> list[Tensor]:
    """What the model says of each sequence alone, without any padding."""
    side = batch.target
    assert side.lengths is not None and side.segments is not None
    return [
        model(tokens[None, :n], Layout(), segments[None, :n])[0]
        for tokens, segments, n in zip(side.tokens, side.segments, side.lengths, strict=True)
    ]


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward(retain_graph=True)
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same(model: Encoder, found: Tensor, expected: Tensor) -> None:
    """The same loss, and the same gradients."""
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    ours, theirs = gradients(model, found), gradients(model, expected)
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-9, atol=1e-12, msg=name)


def token_batch(share: float = 0.4, n_labels: int = VOCAB) -> Batch:
    draw = np.random.default_rng(4)
    labels = draw.integers(0, n_labels, sum(LENGTHS))
    return batch_of(np.where(draw.random(len(labels)) < share, labels, IGNORE), by_token=True)


def everywhere(batch: Batch) -> Tensor:
    """Labels in the shape of the tokens."""
    labels = torch.full(batch.target.tokens.shape, IGNORE)
    labels.view(-1)[batch.positions] = batch.labels
    return labels


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("tie", ["output", "none"])
def test_masked_tokens_are_guessed_as_if_the_head_stood_on_all(tie: str, smoothing: float) -> None:
    model, batch = encoder(head="masked", tie=tie), token_batch()
    labels = everywhere(batch)
    assert 3 < batch.n_labels == int((labels != IGNORE).sum()) < sum(LENGTHS)
    logits = model(batch.target.tokens, Layout(batch.target.lengths), batch.target.segments)
    expected = F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), reduction="sum", label_smoothing=smoothing
    )
    assert_same(model, masked_tokens()(model, batch, smoothing), expected)


def pair_batch() -> Batch:
    batch = token_batch()
    pairs = torch.tensor([1, 0, IGNORE, 1, 0])
    return Batch(None, batch.target, batch.labels, batch.n_labels, batch.positions, pairs)


def test_a_pair_counts_for_so_many_masked_tokens() -> None:
    model, batch = encoder(head="masked", pair_head=True), pair_batch()
    tokens = masked_tokens()(model, batch, 0.0)
    side, wrong = batch.target, torch.zeros((), dtype=torch.float64)
    for row in (0, 1, 3, 4):
        n = int(side.lengths[row])
        x = model.hidden(side.tokens[row : row + 1, :n], Layout(), side.segments[row : row + 1, :n])
        logits = model.pair_head(model.pooler(x, Layout()))[0]
        wrong = wrong - logits.log_softmax(-1)[batch.pairs[row]]
    assert_same(model, masked_tokens(7.5)(model, batch, 0.0), tokens + 7.5 * wrong)
    plain = gradients(model, masked_tokens()(model, batch, 0.0))
    assert not any(name.startswith(("pair_head", "pooler")) for name in plain)


def test_packed_pairs_have_the_loss_of_padded_ones() -> None:
    model, batch = encoder(head="masked", pair_head=True), pair_batch()
    loss = masked_tokens(3.0)
    assert_same(model, loss(model, packed(batch), 0.1), loss(model, batch, 0.1))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weights", [None, [0.5, 2.0, 1.0, 3.0]])
def test_one_class_is_torch_s_cross_entropy(weights: list[float] | None, smoothing: float) -> None:
    model, batch = labeller(), batch_of([1, 3, 0, 2, 3])
    scale = None if weights is None else torch.tensor(weights)
    expected = F.cross_entropy(
        torch.stack(said(model, batch)),
        batch.labels,
        None if scale is None else scale.double(),
        reduction="sum",
        label_smoothing=smoothing,
    )
    assert_same(model, one_class(scale)(model, batch, smoothing), expected)


def test_a_weight_of_two_is_a_text_that_is_there_twice() -> None:
    model, labels = labeller(), [1, 3, 0, 2, 3]
    weights = torch.tensor([1.0, 1.0, 1.0, 2.0])
    twice = one_class()(model, batch_of(labels, [0, 1, 1, 2, 3, 4, 4]), 0.0)
    assert_same(model, one_class(weights)(model, batch_of(labels), 0.0), twice)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weights", [None, [0.5, 2.0, 1.0, 3.0]])
def test_many_classes_are_a_yes_or_no_to_each(
    weights: list[float] | None, smoothing: float
) -> None:
    wanted = np.array([[1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 0], [0, 0, 0, 1]])
    model, batch = labeller(), batch_of(wanted.astype(np.float32))
    expected = torch.zeros((), dtype=torch.float64)
    for logits, row in zip(said(model, batch), wanted.tolist(), strict=True):
        for c, yes in enumerate(row):
            target = yes * (1 - smoothing) + smoothing / 2
            heavy = 1.0 if weights is None else weights[c]
            right, wrong = F.logsigmoid(logits[c]), F.logsigmoid(-logits[c])
            expected = expected - (heavy * target * right + (1 - target) * wrong) / N_LABELS
    scale = None if weights is None else torch.tensor(weights)
    assert_same(model, many_classes(scale)(model, batch, smoothing), expected)


def test_a_number_is_missed_by_its_squared_distance() -> None:
    values = np.array([0.5, -1.25, 3.0, 0.0, 2.0], np.float32)
    model, batch = labeller(n_labels=1), batch_of(values)
    pairs = zip(said(model, batch), values.tolist(), strict=True)
    expected = torch.stack([(logits[0] - value) ** 2 for logits, value in pairs]).sum()
    assert_same(model, number(model, batch, 0.0), expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_labels_of_tokens_count_where_there_are_some(smoothing: float) -> None:
    model, batch = labeller("token"), token_batch(0.6, N_LABELS)
    logits = model(batch.target.tokens, Layout(batch.target.lengths), batch.target.segments)
    expected = F.cross_entropy(
        logits.flatten(0, 1),
        everywhere(batch).flatten(),
        reduction="sum",
        label_smoothing=smoothing,
    )
    assert_same(model, token_labels()(model, batch, smoothing), expected)
    assert_same(model, token_labels()(model, packed(batch), smoothing), expected)


def test_spans_are_two_softmaxes_over_real_tokens_alone() -> None:
    positions = np.array([[0, 0], [1, 2], [3, 8], [1, 1], [0, 6]])
    model, batch = labeller("token", 2), batch_of(positions)
    expected = torch.zeros((), dtype=torch.float64)
    for logits, (start, end) in zip(said(model, batch), positions.tolist(), strict=True):
        log = logits.log_softmax(0)  # (T, 2)
        expected = expected - (log[start, 0] + log[end, 1]) / 2
    assert_same(model, spans()(model, batch, 0.0), expected)


def half_of_r_drop(read: Sequence[Tensor], labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Half of R-Drop's loss of two readings, their divergences weighing 3."""
    wrong = [F.cross_entropy(x, labels, label_smoothing=smoothing, reduction="sum") for x in read]
    p, q = (x.log_softmax(-1) for x in read)
    apart = [F.kl_div(b, a, log_target=True, reduction="sum") for a, b in ((p, q), (q, p))]
    return sum(wrong) / 2 + 3.0 * sum(apart) / 4


CONSISTENT = {
    "class": (one_class, "sequence", N_LABELS, [1, 3, 0, 2, 3], False),
    "tokens": (lambda _, c=0.0: token_labels(c), "token", N_LABELS, None, True),
    "spans": (
        lambda _, c=0.0: spans(c),
        "token",
        2,
        [[0, 0], [1, 2], [3, 8], [1, 1], [0, 6]],
        False,
    ),
}


@pytest.mark.parametrize("name", CONSISTENT)
def test_consistency_is_half_of_each_reading_and_their_divergence(name: str) -> None:
    make, head, n_labels, labels, by_token = CONSISTENT[name]
    model = labeller(head, n_labels, dropout=0.3).train()
    batch = token_batch(0.6, N_LABELS) if by_token else batch_of(np.array(labels))
    torch.manual_seed(4)
    found = make(None, 3.0)(model, batch, 0.0)
    torch.manual_seed(4)  # the same two draws of dropout
    side = batch.target
    layout = Layout(side.lengths)
    if name == "tokens":  # the head drops out too, at the positions that have labels
        read = [
            model.head(
                model.hidden(side.tokens, layout, side.segments).flatten(0, 1)[batch.positions]
            )
            for _ in range(2)
        ]
    else:
        read = [model(side.tokens, layout, side.segments) for _ in range(2)]
    answers = batch.labels
    if name == "spans":
        place = torch.arange(side.tokens.shape[1]) >= side.lengths[:, None]
        read = [
            one.masked_fill(place[:, :, None], -1e30).transpose(1, 2).flatten(0, 1) for one in read
        ]
        answers = batch.labels.flatten()
    expected = half_of_r_drop(read, answers)
    torch.testing.assert_close(found, expected / 2 if name == "spans" else expected)


@pytest.mark.parametrize("name", CONSISTENT)
def test_consistency_is_for_training_alone(name: str) -> None:
    make, head, n_labels, labels, by_token = CONSISTENT[name]
    model = labeller(head, n_labels, dropout=0.3).eval()
    batch = token_batch(0.6, N_LABELS) if by_token else batch_of(np.array(labels))
    assert torch.equal(make(None, 3.0)(model, batch, 0.0), make(None)(model, batch, 0.0))


PAIRS = {"padded": lambda: padded(some_texts(5)), "packed": lambda: packed_pairs(some_texts(5), 36)}


def logits_of(model: nn.Module, batch: Batch) -> Tensor:
    """Logits of all target tokens, (N, V)."""
    sides = [side for side in (batch.source, batch.target) if side is not None]
    logits: Tensor = model(*(side.tokens for side in sides), *map(layout_of, sides))
    return logits.flatten(0, 1)


@pytest.mark.parametrize("layout", PAIRS)
def test_a_batch_twice_is_each_sequence_by_itself_twice(layout: str) -> None:
    model, batch = tiny_model(), PAIRS[layout]()
    once = logits_of(model, batch)
    torch.testing.assert_close(logits_of(model, batch.twice()), torch.cat([once, once]))


@pytest.mark.parametrize("layout", PAIRS)
def test_consistent_next_tokens_are_half_of_r_drop_s_loss(layout: str) -> None:
    torch.manual_seed(0)
    model, batch = tiny_model(dropout=0.3).train(), PAIRS[layout]()
    torch.manual_seed(4)
    found = consistent_next_token(3.0)(model, batch, 0.1)
    torch.manual_seed(4)  # the same draws of dropout
    logits, labels = logits_of(model, batch.twice()), batch.labels.flatten()
    counted = labels != IGNORE
    read = [part[counted] for part in logits.view(2, len(labels), -1)]
    assert_same(model, found, half_of_r_drop(read, labels[counted], 0.1))


def test_consistent_next_tokens_are_plain_ones_in_validation_and_without_weight() -> None:
    model, batch = tiny_model(dropout=0.3), padded(some_texts(5))
    assert consistent_next_token(0.0) is next_token
    assert torch.equal(consistent_next_token(3.0)(model, batch, 0.1), next_token(model, batch, 0.1))


def twins(groups: Sequence[tuple[int, int]], indices: Sequence[int] = range(5)) -> Batch:
    """Pairs of texts, with the groups of equal first and of equal second ones."""
    first, second = texts_of(), texts_of([4, 8, 2, 6, 3])
    sides = (padded_side([texts[index] for index in indices]) for texts in (first, second))
    return Batch(*sides, torch.tensor([groups[index] for index in indices]), len(indices))


def vectors(model: Encoder, side: Side, pooling: str) -> list[Tensor]:
    """Each text's vector, of length 1, read alone."""
    read = []
    for row, length in zip(side.tokens, side.lengths, strict=True):
        x = model.hidden(row[None, :length])[0]
        vector = x[0] if pooling == "first" else x.mean(0)
        read.append(vector / vector.square().sum().sqrt())
    return read


APART = [(index, index) for index in range(5)]


@pytest.mark.parametrize(
    "groups",
    [
        APART,
        [(0, 0), (1, 1), (0, 2), (2, 3), (0, 4)],  # equal first texts
        [(0, 0), (1, 1), (2, 1), (3, 0), (4, 1)],  # equal second texts
        [(0, 0), (0, 1), (2, 1), (3, 3), (3, 3)],
    ],
)
@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_contrast_compares_with_all_pairs_but_those_that_share_a_text(
    pooling: str, groups: list[tuple[int, int]]
) -> None:
    model, temperature, batch = encoder(), 0.3, twins(groups)
    first, second = (vectors(model, side, pooling) for side in (batch.source, batch.target))
    expected = torch.zeros((), dtype=torch.float64)
    for ours, theirs in ((first, second), (second, first)):
        for i, (a, b) in enumerate(groups):
            others = [j for j, (c, d) in enumerate(groups) if j == i or (a != c and b != d)]
            similarity = torch.stack([ours[i] @ theirs[j] for j in others]) / temperature
            expected = expected - similarity.log_softmax(0)[others.index(i)] / 2
    assert_same(model, contrast(pooling, temperature)(model, batch, 0.0), expected)


def test_contrast_is_nothing_where_there_is_nothing_to_compare_with() -> None:
    loss = contrast("mean", 0.05)(encoder(), twins(APART, [2]), 0.0)
    assert float(loss.detach()) == pytest.approx(0.0, abs=1e-12)


WANTED = np.array([[1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 0], [0, 0, 0, 1]])
STEPS: dict[str, tuple[Objective, Encoder, Any, bool]] = {
    "hidden": (masked_tokens(), encoder(head="masked"), None, True),
    "class": (one_class(torch.tensor([1.0, 2, 3, 4])), labeller(), [1, 3, 0, 2, 3], False),
    "classes": (many_classes(), labeller(), WANTED.astype(np.float32), False),
    "number": (number, labeller(n_labels=1), np.arange(5, dtype=np.float32), False),
    "tokens": (token_labels(), labeller("token", VOCAB), None, True),
    "spans": (spans(), labeller("token", 2), [[0, 0], [1, 2], [3, 8], [1, 1], [0, 6]], False),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_of_several_batches_is_that_of_one(name: str) -> None:
    objective, model, labels, by_token = STEPS[name]
    if by_token:
        labels = np.random.default_rng(5).integers(0, VOCAB, sum(LENGTHS))
    loss_sum = build_loss(model, TrainConfig(precision="float32"), CPU, objective=objective)
    found = []
    for split in ([[0, 1, 2, 3, 4]], [[4, 0], [2, 1, 3]], [[0], [1], [2], [3], [4]]):
        model.zero_grad()
        loss = accumulate(loss_sum, [batch_of(labels, part, by_token) for part in split], 0.1)
        found.append([loss, *(p.grad for p in model.parameters() if p.grad is not None)])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-9, atol=1e-12)


def test_gradients_reach_all_that_takes_part_and_nothing_else() -> None:
    """The pooler is for whole texts; what is said of tokens passes it by."""
    for name, (objective, model, labels, by_token) in STEPS.items():
        labels = np.zeros(sum(LENGTHS), np.int64) if by_token else labels
        reached = gradients(model, objective(model, batch_of(labels, by_token=by_token), 0.0))
        idle = {n for n, _ in model.named_parameters()} - reached.keys()
        whole = name in ("class", "classes", "number")
        assert idle == (set() if whole else {"pooler.dense.weight", "pooler.dense.bias"})
        assert all(gradient.abs().max() > 0 for gradient in reached.values())
    loss = contrast("mean", 0.1)(model := encoder(head="none"), twins(APART), 0.0)
    reached = gradients(model, loss)
    assert not any(name.startswith(("head", "pooler")) for name in reached)


def test_losses_of_half_precision_are_summed_in_full() -> None:
    model, batch = labeller().float(), batch_of([1, 3, 0, 2, 3])
    exact = float(one_class()(model, batch, 0.0).detach())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = one_class()(model, batch, 0.0)
    assert found.dtype == torch.float32
    assert float(found.detach()) == pytest.approx(exact, rel=0.02)


def test_similarities_are_not_rounded_to_half_precision() -> None:
    """Texts much alike, as to a fresh model: steps of 1/256 would be all that is between them."""

    class Fixed(nn.Module):
        """A model whose hidden states are given, in float32 whatever the precision."""

        vector, embed = None, Encoder.embed

        def forward(self, tokens: Tensor, *others: Any, then: Callable[[Tensor], Tensor]) -> Tensor:
            draw = torch.Generator().manual_seed(int(tokens.sum()))
            return then(1 + 0.01 * torch.randn(5, 1, 16, generator=draw))

    loss, batch = contrast("first", 0.001), twins(APART)
    exact = loss(Fixed(), batch, 0.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(loss(Fixed(), batch, 0.0), exact)


OPINIONS = torch.randn(5, N_LABELS, generator=torch.Generator().manual_seed(6)).softmax(-1)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize(("weight", "temperature"), [(0.0, 1.0), (0.3, 0.5), (1.0, 3.0)])
@pytest.mark.parametrize("labels", [[1, 3, 0, 2, 3], [1, IGNORE, 0, IGNORE, 3], [IGNORE] * 5])
def test_labels_have_the_share_that_a_teacher_leaves_where_there_are_some(
    labels: list[int], weight: float, temperature: float, smoothing: float
) -> None:
    """A teacher is torch's cross-entropy with its probabilities; times T², gradients go as 1/T²."""
    model, batch = labeller(), replace(batch_of(labels), opinions=OPINIONS)
    scale = torch.tensor([0.5, 2.0, 1.0, 3.0])
    teacher = TeacherConfig(weight=weight, temperature=temperature)
    logits = torch.stack(said(model, batch))
    by_teacher = F.cross_entropy(logits / temperature, OPINIONS.double(), reduction="none")
    by_label = F.cross_entropy(
        logits, batch.labels, scale.double(), reduction="none", label_smoothing=smoothing
    )
    share = torch.where(batch.labels == IGNORE, 1.0, torch.tensor(weight, dtype=torch.float64))
    expected = (share * temperature**2 * by_teacher + (1 - share) * by_label).sum()
    assert_same(model, one_class(scale, teacher=teacher)(model, batch, smoothing), expected)


def test_gradients_of_a_teacher_are_as_large_as_those_of_labels() -> None:
    """At a high temperature, logits go to the teacher's, less their means, by 1/C of the way."""
    logits = torch.randn(3, N_LABELS, dtype=torch.float64, requires_grad=True)
    theirs = torch.randn(3, N_LABELS, dtype=torch.float64)
    hot = 1e4
    distillation(logits, (theirs / hot).softmax(-1), hot).sum().backward()
    expected = (logits - logits.mean(-1, True) - theirs + theirs.mean(-1, True)) / N_LABELS
    torch.testing.assert_close(logits.grad, expected.detach(), rtol=1e-3, atol=1e-3)


def test_next_tokens_of_a_decoder_are_torch_s_cross_entropy() -> None:
    """An encoder-decoder's are in test_step."""
    model = tiny_model(family="decoder", n_encoder_layers=0)
    batch = replace(padded(some_texts(5)), source=None)
    logits = model(batch.target.tokens, layout_of(batch.target))
    expected = F.cross_entropy(
        logits.flatten(0, 1), batch.labels.flatten(), reduction="sum", label_smoothing=0.1
    )
    assert_same(model, next_token(model, batch, 0.1), expected)


@pytest.mark.parametrize("name", ["next", "consistent", "contrast", *STEPS])
def test_every_objective_is_inside_of_the_model_s_forward_pass(name: str) -> None:
    """What parallel training does before and after it, it does to all that is computed."""
    labels: Any = np.zeros(sum(LENGTHS), np.int64)
    if name == "next":
        objective, model, batch = next_token, tiny_model(), padded(some_texts(5))
    elif name == "consistent":
        objective, model = consistent_next_token(1.0), tiny_model().train()
        batch = padded(some_texts(5))
    elif name == "contrast":
        objective, model, batch = contrast("mean", 0.1), encoder(head="none"), twins(APART)
    else:
        objective, model, given, by_token = STEPS[name]
        batch = batch_of(labels if by_token else given, by_token=by_token)
    inside, used = [False], []

    def check(module: nn.Module, *others: Any) -> None:
        assert inside[0], f"{type(module).__name__} runs outside of forward"
        used.append(module)

    hooks = [model.register_forward_pre_hook(lambda *_: inside.__setitem__(0, True))]
    hooks += [part.register_forward_pre_hook(check) for part in list(model.modules())[1:]]
    hooks += [model.register_forward_hook(lambda *_: inside.__setitem__(0, False))]
    objective(model, batch, 0.0).backward()
    for hook in hooks:
        hook.remove()
    assert used and not inside[0]


@pytest.mark.parametrize("name", ["next", "consistent", "masked"])
def test_blocks_and_loss_of_packed_batches_compile_without_breaks(name: str) -> None:
    """Forward and backward; what a step runs on a GPU."""
    torch._dynamo.reset()
    counted = torch._dynamo.utils.counters
    counted.clear()
    if name == "masked":
        objective, batch = masked_tokens(3.0), packed(pair_batch())
        model = encoder(head="masked", pair_head=True)
    else:
        objective = next_token if name == "next" else consistent_next_token(1.0)
        model, batch = tiny_model(dropout=0.0), packed_pairs(some_texts(5), 36)
    expected = objective(model.train(), batch, 0.1)
    with use_regions(torch.compile(own_call(), fullgraph=True, backend="aot_eager")):
        found = objective(model, batch, 0.1)
    assert_same(model, found, expected)
    assert counted["stats"]["unique_graphs"] == (
        2 if name == "masked" else 3
    )  # blocks, and the loss
