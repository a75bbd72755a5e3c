"""`qkv.verify`: the rows of its table, and how they are worked through."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from qkv.proofs import (
    batching,
    decoding,
    equations,
    learning,
    peer,
    quantization,
    round_trip,
    saved_folder,
)
from qkv.proofs.model_under_test import ModelUnderTest, prepare
from qkv.proofs.proof import Measured, NotApplicableError, Proof

Progress = Callable[[str, int, int], None]
"""Called with the name of the next row, how many rows are done, and how many there are."""


@dataclass(frozen=True)
class Row:
    """One thing to prove, and of which models."""

    name: str
    meaning: str
    prove: Callable[[ModelUnderTest], Measured]
    applies: Callable[[ModelUnderTest], bool] = lambda tested: True


def _reads(tested: ModelUnderTest) -> bool:
    return not tested.sees


def _writes(tested: ModelUnderTest) -> bool:
    return tested.writes


ROWS = (
    Row(
        "fast path = equation path",
        "The fast kernels compute softmax(QKᵀ/√d_k + M)V, as the equation is written.",
        equations.fast_path,
    ),
    Row(
        "cache = no cache",
        "Writing with remembered keys and values gives the logits of reading the whole text anew.",
        decoding.cache,
        _writes,
    ),
    Row(
        "batch = single",
        "What is said of a text or an image does not depend on the others in its batch.",
        batching.batch,
    ),
    Row(
        "padded = unpadded = packed",
        "Texts of different lengths can share a batch, padded or end to end, without a change.",
        batching.padding,
        _reads,
    ),
    Row(
        "the future is unseen",
        "No token changes a logit that stands before it.",
        equations.causal,
        _writes,
    ),
    Row(
        "beam 1 = greedy",
        "Beam search with one beam writes what greedy search writes.",
        decoding.one_beam,
        _writes,
    ),
    Row(
        "saved = loaded",
        "A saved model comes back with every bit of its weights, its vocabulary and its settings.",
        saved_folder.saved_and_loaded,
    ),
    Row(
        "export = transformers",
        "The exported model gives the same logits, and writes the same, in `transformers`.",
        peer.in_transformers,
    ),
    Row(
        "accumulated = one batch",
        "A step in small batches, for little memory, has the gradient of one large batch.",
        learning.accumulation,
    ),
    Row(
        "resumed = uninterrupted",
        "A run that goes on from a checkpoint ends with the weights of one that never stopped.",
        learning.resumption,
    ),
    Row(
        "quantised = dequantised",
        "Products with weights in 8 or 4 bits are those with the floats that they stand for.",
        quantization.dequantized,
        lambda tested: tested.quantized is not None,
    ),
    Row(
        "text = tokens = text",
        "A text that is turned into tokens and back has lost none of its characters.",
        round_trip.round_trip,
        _reads,
    ),
)


def verify(
    model: str | Path,
    device: str = "auto",
    progress: Progress | None = None,
    dtype: str | None = None,
) -> list[Proof]:
    """Prove, on this machine, that a model's numbers are right: a proof for each row that applies.

    Differences of logits are in units of their root mean square, and compared in float64 where the
    model is small, else in float32. Weights that the file or `dtype` quantises are compared with
    their floats, and these with everything else.
    """
    proofs = []
    with torch.random.fork_rng(devices=[]):  # training draws, and the caller's random state stays
        tested = prepare(model, device, dtype)
        rows = [row for row in ROWS if row.applies(tested)]
        for done, row in enumerate(rows):
            if progress:
                progress(row.name, done, len(rows))
            proofs.append(_prove(row, tested))
    return proofs


def _prove(row: Row, tested: ModelUnderTest) -> Proof:
    try:
        measured = row.prove(tested)
    except NotApplicableError as why:
        return Proof(row.name, row.meaning, None, 0.0, None, str(why))
    except (OSError, MemoryError):
        raise  # of the machine, not of the model
    except Exception as error:  # what breaks is not right, and the other rows are worth knowing
        note = f"{type(error).__name__}: {error}"
        return Proof(row.name, row.meaning, None, 0.0, False, note)
    apart, limit, note = measured
    if apart is not None and not math.isfinite(apart):
        apart, note = None, note or "some numbers are not finite, or outputs of another length"
    return Proof(row.name, row.meaning, apart, limit, apart is not None and apart <= limit, note)
