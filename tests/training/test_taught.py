"""What teachers say as an objective: against torch's cross-entropy, and beside labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from qkv.config import TeacherConfig
from qkv.data import IGNORE, Batch
from qkv.model import Layout
from qkv.training import one_class
from qkv.training.objectives import apart
from tests.training.test_objectives import N_LABELS, assert_same, batch_of, labeller, said

OPINIONS = torch.randn(5, N_LABELS, generator=torch.Generator().manual_seed(6)).softmax(-1)


def taught(labels: Sequence[int]) -> Batch:
    """A batch of which teachers have said something too."""
    return replace(batch_of(labels), opinions=OPINIONS)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
def test_a_teacher_alone_is_torch_s_cross_entropy_with_its_probabilities(
    temperature: float,
) -> None:
    """Whatever the labels are, and whether there are any; times T², for gradients go as 1/T²."""
    model, teacher = labeller(), TeacherConfig(weight=1.0, temperature=temperature)
    for labels in ([1, 3, 0, 2, 3], [IGNORE] * 5, [IGNORE, 0, IGNORE, 0, 0]):
        batch = taught(labels)
        logits = torch.stack(said(model, batch)) / temperature
        expected = temperature**2 * F.cross_entropy(logits, OPINIONS.double(), reduction="sum")
        found = one_class(torch.tensor([0.5, 2.0, 1.0, 3.0]), teacher=teacher)(model, batch, 0.2)
        assert_same(model, found, expected)


def test_what_a_teacher_says_is_a_divergence_and_a_constant() -> None:
    model, batch, temperature = labeller(), taught([1, 3, 0, 2, 3]), 2.0
    loss = one_class(teacher=TeacherConfig(weight=1.0, temperature=temperature))
    log = (torch.stack(said(model, batch)) / temperature).log_softmax(-1)
    target = OPINIONS.double()
    divergence = F.kl_div(log, target, reduction="sum")
    entropy = -(target * target.log()).sum()
    expected = temperature**2 * (divergence + entropy)
    assert_same(model, loss(model, batch, 0.0), expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_labels_have_the_share_that_a_teacher_leaves_where_there_are_some(
    weight: float, smoothing: float
) -> None:
    model, labels = labeller(), [1, IGNORE, 0, IGNORE, 3]
    scale, teacher = torch.tensor([0.5, 2.0, 1.0, 3.0]), TeacherConfig(weight=weight)
    expected = torch.zeros((), dtype=torch.float64)
    for logits, label, opinion in zip(
        said(model, taught(labels)), labels, OPINIONS.double(), strict=True
    ):
        by_teacher = -4 * (opinion * (logits / 2).log_softmax(0)).sum()  # T = 2 is the default
        share = 1.0 if label == IGNORE else weight
        expected = expected + share * by_teacher
        if label != IGNORE:
            wrong = F.cross_entropy(
                logits[None],
                torch.tensor([label]),
                scale.double(),
                reduction="sum",
                label_smoothing=smoothing,
            )
            expected = expected + (1 - share) * wrong
    assert_same(
        model, one_class(scale, teacher=teacher)(model, taught(labels), smoothing), expected
    )


def test_gradients_of_a_teacher_are_as_large_as_those_of_labels() -> None:
    """At a high temperature, logits go to the teacher's, less their means, by 1/C of the way."""
    logits = torch.randn(3, N_LABELS, dtype=torch.float64, requires_grad=True)
    theirs = torch.randn(3, N_LABELS, dtype=torch.float64)
    hot = 1e4
    apart(logits, (theirs / hot).softmax(-1), hot).sum().backward()
    expected = (logits - logits.mean(-1, True) - theirs + theirs.mean(-1, True)) / N_LABELS
    torch.testing.assert_close(logits.grad, expected.detach(), rtol=1e-3, atol=1e-3)


def test_both_readings_of_a_consistent_model_learn_from_the_teacher() -> None:
    model, batch = labeller(dropout=0.3).train(), taught([1, IGNORE, 0, IGNORE, 3])
    teacher, side = TeacherConfig(weight=0.25, temperature=1.0), batch.target
    torch.manual_seed(4)
    found = one_class(None, 3.0, teacher)(model, batch, 0.0)
    torch.manual_seed(4)  # the same two draws of dropout
    read = [model(side.tokens, Layout(side.lengths), side.segments) for _ in range(2)]
    expected = torch.zeros((), dtype=torch.float64)
    for logits in read:
        by_teacher = F.cross_entropy(logits, OPINIONS.double(), reduction="none")
        by_label = F.cross_entropy(logits, batch.labels, reduction="none", ignore_index=IGNORE)
        share = torch.tensor([0.25, 1, 0.25, 1, 0.25], dtype=torch.float64)
        expected = expected + (share * by_teacher + (1 - share) * by_label).sum() / 2
    p, q = (one.softmax(-1) for one in read)
    kl = [F.kl_div(b.log(), a, reduction="sum") for a, b in ((p, q), (q, p))]
    torch.testing.assert_close(found, expected + 3.0 * sum(kl) / 4)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weights", [None, [0.5, 2.0, 1.0, 3.0]])
def test_without_opinions_a_teacher_changes_no_bit(
    weights: list[float] | None, smoothing: float
) -> None:
    scale = None if weights is None else torch.tensor(weights)
    teacher = TeacherConfig(("big",), weight=0.7, temperature=5.0)
    labels = np.random.default_rng(8).integers(0, N_LABELS, 5)
    for seed in range(20):
        model, batch = labeller().float(), batch_of(labels)
        with torch.no_grad():
            draw = torch.Generator().manual_seed(seed)
            model.head.projection.weight.normal_(generator=draw)
            side = batch.target
            logits = model(side.tokens, Layout(side.lengths), side.segments)
            expected = F.cross_entropy(
                logits, batch.labels, scale, reduction="sum", label_smoothing=smoothing
            )
            assert torch.equal(one_class(scale, 0.0, teacher)(model, batch, smoothing), expected)
