import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data import Ragged

SEQUENCES = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=5), max_size=8)


@given(SEQUENCES, st.data())
def test_sequences_come_back_as_they_went_in(
    sequences: list[list[int]], data: st.DataObject
) -> None:
    ragged = Ragged.of(sequences)
    assert [row.tolist() for row in ragged] == sequences
    assert ragged.lengths.tolist() == [len(row) for row in sequences]
    chosen = data.draw(st.lists(st.integers(0, len(sequences) - 1))) if sequences else []
    assert [row.tolist() for row in ragged.take(chosen)] == [sequences[i] for i in chosen]


def test_a_sequence_is_a_view_and_counts_from_both_ends() -> None:
    ragged = Ragged.of([[1, 2], [3]])
    assert np.shares_memory(ragged[0], ragged.tokens)
    assert ragged[-1].tolist() == [3]
    with pytest.raises(IndexError):
        ragged[2]
