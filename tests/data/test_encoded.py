import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.data import EncodedPairs, Ragged

SEQUENCES = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=5), max_size=8)


@settings(deadline=None)
@given(SEQUENCES)
def test_sequences_come_back_as_they_went_in(sequences: list[list[int]]) -> None:
    ragged = Ragged.of(sequences)
    assert [row.tolist() for row in ragged] == sequences
    assert ragged.lengths.tolist() == [len(row) for row in sequences]
    assert (ragged.tokens.dtype, ragged.offsets.dtype) == (np.int32, np.int64)


@settings(deadline=None)
@given(SEQUENCES, st.data())
def test_taking_is_indexing(sequences: list[list[int]], data: st.DataObject) -> None:
    places = list(range(len(sequences)))
    indices = data.draw(st.lists(st.sampled_from(places), max_size=10)) if places else []
    taken = Ragged.of(sequences).take(indices)
    assert [row.tolist() for row in taken] == [sequences[index] for index in indices]


def test_a_sequence_is_a_view_and_counts_from_both_ends() -> None:
    ragged = Ragged.of([[1, 2], [3]])
    assert np.shares_memory(ragged[0], ragged.tokens)
    assert ragged[-1].tolist() == [3]
    with pytest.raises(IndexError):
        ragged[2]


def test_pairs_have_two_sides_of_the_same_number() -> None:
    with pytest.raises(ValueError, match="2 sources but 1 targets"):
        EncodedPairs(Ragged.of([[1], [2]]), Ragged.of([[1]]))


def test_pairs_are_taken_on_both_sides() -> None:
    pairs = EncodedPairs(Ragged.of([[1], [2, 2], []]), Ragged.of([[5, 5], [], [7]]))
    taken = pairs.take(np.array([2, 0]))
    assert [row.tolist() for row in taken.source] == [[], [1]]
    assert [row.tolist() for row in taken.target] == [[7], [5, 5]]
    assert (pairs.source_sizes.tolist(), pairs.target_sizes.tolist()) == ([2, 3, 1], [3, 1, 2])
