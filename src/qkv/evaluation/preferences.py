"""How a language model compares chosen and rejected answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from qkv.data import PreferenceItems
from qkv.evaluation.scores import Score
from qkv.model import evaluating
from qkv.training.objectives import answer_log_probabilities

Table = npt.NDArray[np.float32]


def pair_log_probabilities(
    model: Any, items: PreferenceItems, batches: Iterable[list[int]], device: torch.device
) -> Table:
    """Compute log P of the chosen and the rejected answers, (N, 2), of the rows in `batches`.

    Other rows are 0, so that tables of different rows can be added.
    """
    table = np.zeros((len(items), 2), np.float32)
    with evaluating(model), torch.no_grad():
        for rows in batches:
            batch = items.batch(np.array(rows)).to(device)
            table[rows] = answer_log_probabilities(model, batch).float().view(-1, 2).cpu()
    return table


def preferred(log_probabilities: Table) -> Score:
    """Percentage of pairs whose chosen answer is likelier than the rejected one."""
    return Score(
        "preferred", 100.0 * float((log_probabilities.T[0] > log_probabilities.T[1]).mean())
    )


def margin(log_probabilities: Table) -> Score:
    """By how many nats a chosen answer is likelier than the rejected one, on average."""
    differences = log_probabilities.T[0].astype(np.float64) - log_probabilities.T[1]
    return Score("margin", float(differences.mean()), digits=4)
