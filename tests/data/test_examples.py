import gzip
import json
import re
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.config import TokenizerConfig
from qkv.data import (
    IGNORE,
    Batch,
    Examples,
    ExampleStream,
    Mode,
    Ragged,
    Specials,
    encode_examples,
    example_batches,
    kept_examples,
    packed_examples,
    packed_shape,
    padded_examples,
    read_records,
)
from qkv.errors import UserError
from qkv.text import TEMPLATES, Message, Tokenizer, train_tokenizer

SPECIAL = Specials(pad=0, bos=2, eos=3)
MODES: list[Mode] = ["padded", "packed"]
SEQUENCES = st.lists(
    st.lists(st.tuples(st.integers(4, 99), st.booleans()), min_size=2, max_size=30),
    min_size=1,
    max_size=25,
)
Sequences = list[list[tuple[int, bool]]]


def of(sequences: Sequences) -> Examples:
    tokens = Ragged.of([[token for token, _ in sequence] for sequence in sequences])
    return Examples(tokens, np.array([flag for sequence in sequences for _, flag in sequence]))


def random_examples(n: int, seed: int = 0) -> Examples:
    """Examples whose second half is to be learnt, with the skewed lengths of real ones."""
    random = np.random.default_rng(seed)
    lengths = np.clip(random.lognormal(np.log(20), 0.6, n).astype(int), 2, 80)
    return of(
        [
            [(int(random.integers(4, 500)), place >= length // 2) for place in range(length)]
            for length in lengths
        ]
    )


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(["a"], TokenizerConfig(kind="byte"))


def said(role: str, content: str) -> Message:
    message: Message = {"role": role, "content": content}  # type: ignore[typeddict-item]
    return message


def rows(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """The inputs and labels of each sequence that holds any token but padding."""
    side = batch.target
    if side.lengths is not None:
        bounds = [(row, 0, int(length)) for row, length in enumerate(side.lengths)]
    else:
        assert side.offsets is not None
        cuts = side.offsets.tolist()
        bounds = [(0, start, end) for start, end in pairwise(cuts)]
    found = [
        (side.tokens[row, start:end].tolist(), batch.labels[row, start:end].tolist())
        for row, start, end in bounds
    ]
    return [pair for pair in found if set(pair[0]) - {SPECIAL.pad}]


def by_hand(sequence: list[tuple[int, bool]]) -> tuple[list[int], list[int]]:
    inputs = [token for token, _ in sequence[:-1]]
    return inputs, [token if counts else IGNORE for token, counts in sequence[1:]]


@settings(max_examples=50)
@given(SEQUENCES, st.randoms(use_true_random=False))
def test_inputs_and_labels_are_those_written_by_hand(sequences: Sequences, random) -> None:  # type: ignore[no-untyped-def]
    examples = of(sequences)
    indices = random.sample(range(len(sequences)), random.randint(1, len(sequences)))
    expected = [by_hand(sequences[index]) for index in indices]
    n_labels = sum(label != IGNORE for _, labels in expected for label in labels)
    shape = packed_shape(examples, 1024)
    for batch in (
        padded_examples(examples, indices, SPECIAL),
        padded_examples(examples, indices, SPECIAL, multiple=8),
        packed_examples(examples, indices, SPECIAL, shape),
    ):
        assert batch.source is None
        assert rows(batch) == expected
        assert batch.n_labels == n_labels == int((batch.labels != IGNORE).sum())
        assert batch.labels.shape == batch.target.tokens.shape
        assert batch.target.tokens.dtype == batch.labels.dtype == torch.int64
    assert [n.item() for n in examples.take(indices).n_labels] == [
        sum(label != IGNORE for label in labels) for _, labels in expected
    ]


def test_a_batch_in_full() -> None:
    examples = of(
        [[(7, False), (8, True), (9, True)], [(5, False), (6, False), (4, False), (3, True)]]
    )
    padded = padded_examples(examples, [0, 1], SPECIAL)
    assert padded.target.tokens.tolist() == [[7, 8, 0], [5, 6, 4]]
    assert padded.labels.tolist() == [[8, 9, IGNORE], [IGNORE, IGNORE, 3]]
    assert padded.target.lengths is not None
    assert padded.target.lengths.tolist() == [2, 3]
    assert (padded.target.longest, padded.n_labels) == (3, 3)
    shape = packed_shape(examples, 8)
    assert (shape.source_tokens, shape.target_tokens, shape.longest) == (0, 128, 3)
    packed = packed_examples(examples, [1, 0], SPECIAL, shape)
    assert packed.target.tokens.tolist() == [[5, 6, 4, 7, 8] + [0] * 123]
    assert packed.labels.tolist() == [[IGNORE, IGNORE, 3, 8, 9] + [IGNORE] * 123]
    assert packed.target.offsets is not None
    assert packed.target.offsets[:4].tolist() == [0, 3, 5, 8]  # filler in segments of three
    assert packed.target.offsets[-1] == 128
    assert packed.target.offsets.diff().max() == packed.target.longest == 3


def test_the_answers_of_a_conversation_are_the_labels(tokenizer: Tokenizer) -> None:
    talk = [said("user", "Q"), said("assistant", "A1"), said("user", "?"), said("assistant", "B")]
    for name in ("plain", "alpaca"):
        examples = encode_examples([talk[:2], talk], TEMPLATES[name], tokenizer, bos=True)
        batch = padded_examples(examples, [1], SPECIAL)
        answers = [*tokenizer.encode("A1"), 3, *tokenizer.encode("B"), 3]
        assert batch.labels[batch.labels != IGNORE].tolist() == answers
        assert batch.target.tokens[0, 0] == tokenizer.bos_id
        assert examples.n_labels.tolist() == [3, 5]


def assert_equal(one: Batch, other: Batch) -> None:
    assert one.n_labels == other.n_labels
    assert torch.equal(one.labels, other.labels)
    assert torch.equal(one.target.tokens, other.target.tokens)
    assert one.target.longest == other.target.longest
    assert rows(one) == rows(other)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("accumulate", [1, 3])
def test_resuming_at_any_step_is_exact(mode: Mode, accumulate: int) -> None:
    def stream() -> ExampleStream:
        return ExampleStream(random_examples(60), SPECIAL, mode, 200, accumulate, seed=4)

    n_steps = 3 * len(stream().plan(0)) // accumulate  # three epochs, or just short of it
    unbroken = list(islice(stream().steps_from(0), n_steps))
    assert stream().position(n_steps - 1)[0] == 2
    for step in range(n_steps):
        resumed = islice(stream().steps_from(step), n_steps - step)
        for one, other in zip(unbroken[step:], resumed, strict=True):
            assert len(one) == len(other) == accumulate
            for mine, theirs in zip(one, other, strict=True):
                assert_equal(mine, theirs)


@pytest.mark.parametrize("mode", MODES)
def test_an_epoch_holds_each_example_once_in_an_order_of_its_own(mode: Mode) -> None:
    examples = random_examples(200)
    stream = ExampleStream(examples, SPECIAL, mode, 256)
    epochs = []
    for epoch in (0, 1):
        plan = stream.plan(epoch)
        assert sorted(np.concatenate(plan).tolist()) == list(range(200))
        epochs.append([indices.tolist() for indices in plan])
    assert epochs[0] != epochs[1]
    batches = [step[0] for step in islice(stream.steps_from(), len(stream.plan(0)))]
    assert sum(batch.n_labels for batch in batches) == examples.n_labels.sum()
    for batch in batches:
        assert batch.target.tokens.numel() <= 256


def test_packed_batches_are_full_and_of_one_shape() -> None:
    examples = random_examples(3000)
    stream = ExampleStream(examples, SPECIAL, "packed", 2048)
    n_batches = len(stream.plan(0))
    batches = [step[0] for step in islice(stream.steps_from(), n_batches)]
    sizes = [batch.target.offsets.diff() for batch in batches if batch.target.offsets is not None]
    assert {(batch.labels.shape, batch.target.longest) for batch in batches} == {((1, 2048), 79)}
    assert len({size.shape for size in sizes}) == 1
    assert max(int(size.max()) for size in sizes) <= 79
    assert examples.target_sizes.sum() / ((n_batches - 1) * 2048) > 0.98


def test_padded_batches_are_of_like_lengths() -> None:
    examples = random_examples(3000)
    stream = ExampleStream(examples, SPECIAL, "padded", 2048)
    batches = [step[0] for step in islice(stream.steps_from(), len(stream.plan(0)))]
    places = sum(batch.labels.numel() for batch in batches)
    assert examples.target_sizes.sum() / places > 0.95


def test_validation_batches_hold_every_example_and_never_change() -> None:
    examples = random_examples(100)
    batches = example_batches(examples, 256, SPECIAL)
    assert sum(len(batch.labels) for batch in batches) == 100
    assert sum(batch.n_labels for batch in batches) == examples.n_labels.sum()
    for one, other in zip(batches, example_batches(examples, 256, SPECIAL), strict=True):
        assert_equal(one, other)


def test_examples_too_long_or_unanswered_are_dropped_and_counted(tokenizer: Tokenizer) -> None:
    def asked(answer: str, question: str = "") -> list[Message]:
        return [said("user", question), said("assistant", answer)]

    talks = [asked("abc"), asked(""), asked("abcd"), asked("x" * 3000), asked(" \n", "x" * 3000)]
    examples = encode_examples(talks, TEMPLATES["plain"], tokenizer, bos=True)
    longest = int(examples.tokens.lengths[0])
    kept, sentence = kept_examples(examples, longest)
    assert kept.tolist() == [0]
    assert sentence == (
        f"kept 1 of 5 records; dropped 2 without an answer, 2 too long (over {longest} tokens)"
    )
    assert kept_examples(examples, longest + 1)[0].tolist() == [0, 2]
    assert kept_examples(examples.take([0, 2]), 256)[1] == "kept all 2 records"
    with pytest.raises(UserError, match=r"all 5 records were dropped \(2 without .*, 3 too long"):
        kept_examples(examples, longest - 1)


def test_the_first_token_is_never_learnt() -> None:
    examples = of([[(3, True)], [(4, True), (3, False)], [(4, True), (3, True)]])
    assert examples.n_labels.tolist() == [0, 0, 1]
    assert kept_examples(examples, 9)[0].tolist() == [2]


def test_flags_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="3 tokens but 2 flags"):
        Examples(Ragged.of([[1, 2], [3]]), np.array([True, False]))


def test_real_instructions_come_back(shared_data: Path, tmp_path: Path) -> None:
    path = shared_data / "alpaca" / "alpaca_data.json.gz"
    if not path.is_file():
        pytest.skip(f"needs {path}")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        start = file.read(400_000)
    records = json.loads(start[: start.rindex("\n    },")] + "\n    }]")
    (tmp_path / "part.json").write_text(json.dumps(records), encoding="utf-8")
    talks = read_records(tmp_path / "part.json")
    texts = [message["content"] for messages in talks for message in messages]
    tokenizer = train_tokenizer(texts[:300], TokenizerConfig(vocab_size=1000))
    examples = encode_examples(talks, TEMPLATES["alpaca"], tokenizer, bos=True)
    kept, sentence = kept_examples(examples, 512)
    empty = sum(not record["output"].strip() for record in records)
    assert empty > 0
    assert re.search(rf"of {len(records):,} records; dropped {empty} without an answer", sentence)
    for index in kept[::17]:
        batch = padded_examples(examples, [int(index)], SPECIAL)
        labels = batch.labels[batch.labels != IGNORE].tolist()
        assert labels[-1] == tokenizer.eos_id
        assert tokenizer.decode(labels) == records[index]["output"]
        assert records[index]["instruction"] in tokenizer.decode(batch.target.tokens[0].tolist())
