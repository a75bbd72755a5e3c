"""Properties that the one stream has for every kind of item."""

from collections.abc import Callable
from itertools import cycle, islice
from typing import Any

import numpy as np
import pytest
import torch

from qkv.config import DenoiseConfig, MaskConfig
from qkv.data import (
    IGNORE,
    Batch,
    ConversationItems,
    ImageItems,
    Items,
    MaskedItems,
    Masker,
    Noise,
    NoisyItems,
    PairItems,
    Passages,
    Ragged,
    Scale,
    SequenceItems,
    Stream,
    Tokens,
    TwinItems,
    WindowItems,
    prefetch,
    validation_batches,
)
from tests.data.helpers import SPECIAL, vocabulary
from tests.data.items.test_segmented import segmented, trained

N = 60
RANDOM = np.random.default_rng(0)
LENGTHS = RANDOM.integers(2, 25, N)
TEXTS = Ragged.of([RANDOM.integers(10, 99, n).tolist() for n in LENGTHS])
OTHERS = Ragged.of([RANDOM.integers(10, 99, n).tolist() for n in RANDOM.permutation(LENGTHS)])
TOKENS = Tokens.of([list(text) for text in TEXTS], SPECIAL)
WORDS = np.arange(100) >= 10
PASSAGES = Passages(TOKENS, SPECIAL, vocabulary(~WORDS), 20)
PIXELS = RANDOM.integers(1, 256, (N, 1, 4, 4), dtype=np.uint8)

KINDS: dict[str, Callable[[], Items]] = {
    "pairs": lambda: PairItems(TEXTS, OTHERS, SPECIAL),
    "conversations": lambda: ConversationItems(TEXTS, TEXTS.tokens % 2 > 0, SPECIAL),
    "sequences": lambda: SequenceItems(TEXTS, TEXTS.tokens % 2, np.arange(N), SPECIAL),
    "tokens": lambda: SequenceItems(
        TEXTS, TEXTS.tokens % 2, TEXTS.tokens.astype(np.int64), SPECIAL, by_token=True
    ),
    "twins": lambda: TwinItems(TEXTS, OTHERS, np.stack([np.arange(N)] * 2, axis=1), SPECIAL),
    "windows": lambda: WindowItems(TOKENS, SPECIAL, 16, seed=4),
    "windows across": lambda: WindowItems(TOKENS, SPECIAL, 16, across=True, seed=4),
    "masked": lambda: MaskedItems(
        PASSAGES, Masker(MaskConfig(), 4, ~WORDS, lambda ids: WORDS[ids])
    ),
    "spans": lambda: NoisyItems(
        PASSAGES, Noise(DenoiseConfig(sentinels=5), np.arange(5, 10, dtype=np.int32))
    ),
    "infill": lambda: NoisyItems(
        PASSAGES, Noise(DenoiseConfig(kind="infill"), np.array([4], np.int32)), first=[9]
    ),
    "segmented": lambda: segmented(trained()),
    "images": lambda: ImageItems(PIXELS, np.arange(N), Scale.of(PIXELS), 5, shift=1),
}
PACKED = ["pairs", "segmented", "conversations", "windows", "masked", "spans", "infill"]
CASES = [*((kind, False) for kind in KINDS), *((kind, True) for kind in PACKED)]


def content(batch: Batch) -> list[Any]:
    """Everything in a batch, as plain values."""
    found: list[Any] = [batch.n_labels]
    for part in (batch, batch.source, batch.target):
        for value in vars(part).values() if part is not None else ():
            found.append(value.tolist() if isinstance(value, torch.Tensor) else None)
    return found


@pytest.mark.parametrize(
    ("kind", "packed", "accumulate"),
    [(*case, accumulate) for case, accumulate in zip(CASES, cycle([1, 3]), strict=False)],
)
def test_a_stream_that_is_resumed_at_any_step_goes_on_as_it_would_have(
    kind: str, packed: bool, accumulate: int
) -> None:
    def steps(start: int, count: int) -> list[list[list[Any]]]:
        stream = Stream(KINDS[kind](), 130, packed=packed, accumulate=accumulate, seed=4)
        return [list(map(content, step)) for step in islice(stream.steps_from(start), count)]

    whole = steps(0, 40)
    assert {len(step) for step in whole} == {accumulate}
    for start in (1, 22, 39):
        assert steps(start, 40 - start) == whole[start:]
    batches = [batch for step in whole for batch in step]
    assert len({repr(batch) for batch in batches}) > 12  # epochs differ


@pytest.mark.parametrize(("kind", "packed"), CASES)
def test_seeds_give_other_orders_and_batches_keep_to_the_budget(kind: str, packed: bool) -> None:
    one, other = (Stream(KINDS[kind](), 130, packed=packed, seed=seed) for seed in (0, 1))
    batches = [step[0] for step in islice(one.steps_from(), 30)]
    assert content(batches[0]) != content(next(other.steps_from())[0])
    if kind != "images" and not packed:
        assert max(batch.target.tokens.numel() for batch in batches) <= 130
    shapes = {(batch.target.tokens.shape, batch.labels.shape) for batch in batches}
    even = kind.startswith("windows") or kind == "images"
    assert (len(shapes) == 1) == one.one_shape == (packed or even)


@pytest.mark.parametrize(("kind", "packed"), [case for case in CASES if "windows" not in case[0]])
def test_an_epoch_has_each_item_once(kind: str, packed: bool) -> None:
    items = KINDS[kind]()
    stream = Stream(items, 130, packed=packed)
    if stream.rows:
        n_batches = len(items) // stream.rows
        epoch = [step[0].labels for step in islice(stream.steps_from(), n_batches)]
        seen = torch.cat(epoch).tolist()
        assert len(set(seen)) == len(seen) > len(items) - stream.rows
    else:
        assert sorted(np.concatenate(stream.plan(0)).tolist()) == list(range(len(items)))
        assert sorted(np.concatenate(stream.plan(1)).tolist()) == list(range(len(items)))


def labels_and_tokens(batches: list[Batch]) -> tuple[list[Any], list[Any]]:
    """All labels that count and all tokens that are no padding, sorted, of batches that count."""
    counted = [batch for batch in batches if not batch.stand_in]
    labels = [value for batch in counted for value in batch.labels.flatten().tolist()]
    sides = [side for batch in counted for side in (batch.source, batch.target) if side]
    tokens = [value for side in sides for value in side.tokens.flatten().tolist()]
    return sorted(n for n in labels if n != IGNORE), sorted(n for n in tokens if n != SPECIAL.pad)


@pytest.mark.parametrize(("kind", "packed"), CASES)
@pytest.mark.parametrize("budget", [130, 40])  # of the small one, some workers get nothing
def test_workers_share_the_batches_of_one(kind: str, packed: bool, budget: int) -> None:
    """Each item of a batch is in one share, with the masks and noise that were drawn for it."""

    def steps(**workers: int) -> list[list[Batch]]:
        stream = Stream(KINDS[kind](), budget, packed=packed, accumulate=2, seed=4, **workers)
        return list(islice(stream.steps_from(3), 8))

    whole = steps()
    shares = [steps(worker=worker, n_workers=3) for worker in range(3)]
    for number, batches in enumerate(whole):
        for index, batch in enumerate(batches):
            parts = [share[number][index] for share in shares]
            assert sum(part.n_labels for part in parts) == batch.n_labels
            assert labels_and_tokens(parts) == labels_and_tokens([batch])
    for share in shares if packed else ():
        assert len({batch.target.tokens.shape for step in share for batch in step}) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_validation_batches_hold_every_item_and_never_change(kind: str) -> None:
    items = KINDS[kind]()
    one, other = ([content(b) for b in validation_batches(items, 130)] for _ in range(2))
    assert one == other
    rows = sum(len(batch.target.tokens) for batch in validation_batches(items, 130))
    assert rows == len(items)


def test_positions_walk_through_epochs_of_different_lengths() -> None:
    stream = Stream(KINDS["pairs"](), 200, seed=4)
    sizes = [len(stream.plan(epoch)) for epoch in range(3)]
    expected = [(epoch, number) for epoch in range(3) for number in range(sizes[epoch])]
    fresh = Stream(KINDS["pairs"](), 200, seed=4)
    assert [fresh.position(batch) for batch in range(len(expected))] == expected


def test_a_step_far_away_costs_no_more_than_the_first_where_all_items_have_one_size() -> None:
    stream = Stream(KINDS["windows across"](), 64, seed=4)
    for step in (10**6, 10**9, 10**15):
        assert next(stream.steps_from(step))[0].labels.shape == (4, 16)


def test_a_batch_reads_no_more_than_its_own_items() -> None:
    """Arrays of a large corpus are mapped from files: a batch must not go through them all."""

    class Guarded(np.ndarray):
        """An array that counts the elements that are read by index."""

        read = 0

        def __getitem__(self, index: Any) -> Any:
            found = np.asarray(super().__getitem__(index))
            Guarded.read += found.size
            return found

        def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
            raise AssertionError(f"{function.__name__} goes through the whole corpus")

    for make in (
        lambda tokens: ConversationItems(tokens, (TEXTS.tokens > 50).view(Guarded), SPECIAL),
        lambda tokens: SequenceItems(
            tokens,
            np.zeros(len(TEXTS.tokens), np.int8).view(Guarded),
            np.arange(len(TEXTS.tokens)).view(Guarded),
            SPECIAL,
            by_token=True,
        ),
    ):
        items = make(Ragged(TEXTS.tokens.view(Guarded), TEXTS.offsets))
        Guarded.read = 0
        items.batch(np.array([3, 5]))
        assert Guarded.read <= 4 * int(LENGTHS[[3, 5]].sum())


def test_an_empty_corpus_is_refused_instead_of_planned_for_ever() -> None:
    with pytest.raises(ValueError, match="needs items"):
        Stream(PairItems(Ragged.of([]), Ragged.of([]), SPECIAL), 8)


def test_batches_can_be_made_ahead_in_a_thread() -> None:
    stream = Stream(KINDS["windows"](), 64, packed=True)
    ahead = prefetch(islice(stream.steps_from(), 20), lambda step: step)
    for made, direct in zip(ahead, stream.steps_from(), strict=False):
        assert content(made[0]) == content(direct[0])
