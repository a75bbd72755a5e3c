"""Which models can be split among workers, and in which order their rows lie then."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from qkv.errors import UserError
from qkv.training.tensor_parallel import check_tensor_parallel, row_orders
from tests.training.helpers import small_model


@pytest.mark.parametrize(
    ("differences", "size", "message"),
    [
        ({}, 3, r"n_heads \(2\) must be a multiple"),
        ({"d_ff": 9}, 2, r"d_ff \(9\) must be a multiple"),
        ({"positions": "relative"}, 2, "positions = 'relative' belong to heads"),
    ],
)
def test_a_model_that_cannot_be_split_is_refused(
    differences: dict[str, Any], size: int, message: str
) -> None:
    model = small_model(**differences)
    check_tensor_parallel(model, 1)
    with pytest.raises(UserError, match=message):
        check_tensor_parallel(model, size)


def test_each_worker_s_queries_keys_and_values_are_in_one_piece() -> None:
    model = small_model()  # two heads of four units
    orders = row_orders(model, 2)
    order = orders["decoder.blocks.0.self_attention.query_key_value.weight"]
    first, second = order.view(2, -1).tolist()
    assert first == [*range(4), *range(8, 12), *range(16, 20)]
    assert sorted(first + second) == list(range(24))
    assert "decoder.blocks.0.cross_attention.key_value.bias" in orders
    assert row_orders(model, 1) == {}
    assert all(
        torch.equal(rows[rows.argsort()], torch.arange(len(rows))) for rows in orders.values()
    )
