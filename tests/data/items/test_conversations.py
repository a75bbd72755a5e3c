from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.config import TokenizerConfig
from qkv.data import (
    IGNORE,
    ConversationItems,
    Ragged,
    Specials,
    encode_conversations,
    filter_conversations,
)
from qkv.errors import UserError
from qkv.text import TEMPLATES, Message, Tokenizer, train_tokenizer

SPECIAL = Specials(pad=0, bos=2, eos=3)
Marked = list[list[tuple[int, bool]]]
SEQUENCES = st.lists(
    st.lists(st.tuples(st.integers(4, 99), st.booleans()), min_size=2, max_size=30),
    min_size=1,
    max_size=25,
)


def of(sequences: Marked) -> ConversationItems:
    tokens = Ragged.of([[token for token, _ in sequence] for sequence in sequences])
    learned = np.array([flag for sequence in sequences for _, flag in sequence])
    return ConversationItems(tokens, learned, SPECIAL)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(["a"], TokenizerConfig(kind="byte"))


@settings(max_examples=50)
@given(SEQUENCES, st.randoms(use_true_random=False))
@pytest.mark.parametrize("packed", [False, True])
def test_inputs_and_labels_are_those_written_by_hand(
    packed: bool, sequences: Marked, random: Any
) -> None:
    items = of(sequences)
    indices = random.sample(range(len(sequences)), random.randint(1, len(sequences)))
    shape = items.packed_shape(1024) if packed else None
    batch = items.batch(np.array(indices), shape=shape)
    inputs = [token for index in indices for token, _ in sequences[index][:-1]]
    labels = [
        token if learned else IGNORE for index in indices for token, learned in sequences[index][1:]
    ]
    side = batch.target
    real = side.tokens != SPECIAL.pad
    assert side.tokens[real].tolist() == inputs
    assert batch.labels[real].tolist() == labels
    assert (batch.labels[~real] == IGNORE).all()
    assert batch.n_labels == sum(label != IGNORE for label in labels)
    sizes = side.lengths if side.lengths is not None else side.offsets.diff()
    assert sizes[: len(indices)].tolist() == [len(sequences[index]) - 1 for index in indices]


def said(role: str, content: str) -> Message:
    return {"role": role, "content": content}  # type: ignore[typeddict-item]


@pytest.mark.parametrize("name", ["plain", "alpaca"])
def test_the_answers_of_a_conversation_are_the_labels(name: str, tokenizer: Tokenizer) -> None:
    talk = [said("user", "Q"), said("assistant", "A1"), said("user", "?"), said("assistant", "B")]
    items = encode_conversations([talk[:2], talk], TEMPLATES[name], tokenizer, SPECIAL, bos=True)
    batch = items.batch(np.array([1]))
    answers = [*tokenizer.encode("A1"), 3, *tokenizer.encode("B"), 3]
    assert batch.labels[batch.labels != IGNORE].tolist() == answers
    assert batch.target.tokens[0, 0] == tokenizer.bos_id


def test_conversations_too_long_or_unanswered_are_dropped_and_counted(tokenizer: Tokenizer) -> None:
    def asked(answer: str, question: str = "") -> list[Message]:
        return [said("user", question), said("assistant", answer)]

    talks = [asked("abc"), asked(""), asked("abcd"), asked("x" * 3000), asked(" \n", "x" * 3000)]
    items = encode_conversations(talks, TEMPLATES["plain"], tokenizer, SPECIAL, bos=True)
    longest = int(items.tokens.lengths[0])
    kept, sentence = filter_conversations(items, longest)
    assert kept.rows.tolist() == [0]
    assert sentence == (
        f"1 of 5 records; dropped 2 without an answer, 2 too long (over {longest} tokens)"
    )
    assert filter_conversations(items, longest + 1)[0].rows.tolist() == [0, 2]
    with pytest.raises(UserError, match=r"all 5 records were dropped \(2 without .*, 3 too long"):
        filter_conversations(items, longest - 1)
    first = of([[(3, True)], [(4, True), (3, False)], [(4, True), (3, True)]])
    assert filter_conversations(first, 9)[0].rows.tolist() == [2]  # the first is never a label
