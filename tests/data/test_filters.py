import pytest

from qkv.data import EncodedPairs, Ragged, filter_pairs, kept_indices
from qkv.errors import UserError


def of_lengths(*lengths: tuple[int, int]) -> EncodedPairs:
    source, target = ([[7] * pair[side] for pair in lengths] for side in (0, 1))
    return EncodedPairs(Ragged.of(source), Ragged.of(target))


def test_each_pair_is_dropped_for_the_first_reason_that_holds() -> None:
    pairs = of_lengths((3, 3), (0, 0), (0, 9), (2, 0), (9, 30), (3, 10), (1, 4), (3, 9), (9, 3))
    kept, report = filter_pairs(pairs, max_length=10, max_ratio=3.0)
    assert kept.source.lengths.tolist() == [3, 3, 9]
    assert kept.target.lengths.tolist() == [3, 9, 3]
    assert report.kept == 3
    assert report.dropped == {
        "empty source": 2,
        "empty target": 1,
        "too long": 2,
        "length ratio": 1,
    }
    assert kept_indices(pairs, 10, 3.0)[0].tolist() == [0, 7, 8]


@pytest.mark.parametrize(("length", "fits"), [(9, True), (10, False)])
def test_the_longest_that_passes_has_room_for_its_special_token(length: int, fits: bool) -> None:
    for lengths in ((length, 5), (5, length)):
        assert filter_pairs(of_lengths((5, 5), lengths), 10, 9.0)[1].kept == 1 + fits


def test_the_report_reads_as_a_sentence() -> None:
    pairs = of_lengths(*[(4, 4)] * 1200, *[(300, 300)] * 40, (1, 10), (0, 1))
    assert filter_pairs(pairs, 256, 9.0)[1].describe() == (
        "kept 1,200 of 1,242 pairs; "
        "dropped 1 empty source, 40 too long (over 256 tokens), 1 length ratio over 9"
    )
    assert filter_pairs(of_lengths((1, 1)), 256, 9.0)[1].describe() == "kept all 1 pairs"


def test_dropping_everything_is_an_error_that_says_why() -> None:
    with pytest.raises(UserError, match=r"all 3 pairs .*1 empty target, 2 too long \(over 4 tok"):
        filter_pairs(of_lengths((4, 4), (9, 9), (1, 0)), 4, 9.0)
