"""Questions about several texts: predictions of each position, one word in many sentences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from qkv.errors import UserError
from qkv.inspect.answers import embeddings
from qkv.inspect.answers.answer import Question
from qkv.inspect.answers.embeddings import Neighbours, principal_plane, vocabularies
from qkv.inspect.answers.positions import RotaryAngles
from qkv.inspect.answers.steps import Prediction
from qkv.inspect.answers.word import word_in_context
from qkv.inspect.trace.trace import Trace
from qkv.model import Layout, sinusoids
from qkv.model.positions.rotary import rates
from qkv.tasks import Answerer, Encoder, LanguageModel


class PredictionsAsk(BaseModel):
    """A text of which each position is predicted from what the model may see."""

    text: str = Field(max_length=400)
    top: int = Field(3, ge=1, le=10)
    side: Literal["both", "left"] = Field("both", description="What a masked encoder may see.")


class WordAsk(BaseModel):
    """A word, and sentences that it stands in."""

    word: str = Field(min_length=1, max_length=100)
    sentences: list[str] = Field(min_length=2, max_length=8)


class NeighboursAsk(BaseModel):
    """A word whose neighbours in the embedding table are wanted."""

    word: str = Field(min_length=1, max_length=100)
    top: int = Field(12, ge=1, le=40)


def predictions(task: Any, ask: PredictionsAsk) -> dict[str, Any]:
    """What each position may see, and the best candidates for its token.

    A masked encoder is asked for each token with that token hidden (and, with `side="left"`, all
    after it), a decoder for each token from those before it.
    """
    if isinstance(task, Encoder) and task.model.config.head == "masked":
        return _of_encoder(task, ask)
    if isinstance(task, LanguageModel):
        return _of_decoder(task, ask)
    raise UserError("This model predicts no tokens of its own text; choose a BERT or a GPT.")


def _of_encoder(task: Encoder, ask: PredictionsAsk) -> dict[str, Any]:
    plain = task.trace(ask.text)
    names, ids = plain.tokens("source"), plain["source.tokens"][0].tolist()
    tokenizer = task.tokenizer
    frame = {tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id}
    inner = [position for position, id in enumerate(ids) if id not in frame]
    hidden = plain.inputs.repeat_row(0, max(1, len(inner)))
    assert hidden.source is not None
    for row, position in enumerate(inner):
        hidden.source.tokens[row, position] = tokenizer.mask_id
    seen = torch.ones(len(names), len(names))
    if ask.side == "left":
        seen = seen.tril()
        ends = torch.tensor(inner or [len(names) - 1], device=hidden.source.tokens.device) + 1
        hidden = replace(hidden, source=replace(hidden.source, layout=Layout(ends)))
    trace = Trace(plain.model, hidden)
    predicted = {
        position: _candidates(trace.steps(ask.top, row)[position])
        for row, position in enumerate(inner)
    }
    return {
        "family": "encoder",
        "tokens": names,
        "visible": seen.tolist(),
        "predictions": [predicted.get(position, []) for position in range(len(names))],
    }


def _of_decoder(task: LanguageModel, ask: PredictionsAsk) -> dict[str, Any]:
    trace = task.trace(ask.text)
    mask = trace["decoder.0.self_attention.mask"][0, 0]
    return {
        "family": "decoder",
        "tokens": trace.tokens("target"),
        "visible": torch.isfinite(mask).float().tolist(),
        "predictions": [[], *map(_candidates, trace.steps(ask.top)[:-1])],
    }


def _candidates(step: Prediction) -> list[dict[str, Any]]:
    return [{"name": one.name, "probability": one.probability} for one in step.candidates]


def word_in_sentences(task: Any, ask: WordAsk) -> dict[str, Any]:
    """Cosines between a word's vectors in several sentences, by layer, (layers, n, n)."""
    if isinstance(task, Answerer):
        raise UserError("This model reads a question beside each text; choose another one.")
    answer = word_in_context(task.trace(ask.sentences), ask.word)
    return {"word": ask.word, "cosines": answer.cosine.tolist()}


def neighbours(task: Any, ask: NeighboursAsk) -> dict[str, Any]:
    """The tokens nearest to a word in the embedding table, and all of them on a plane."""
    words = (ask.word,)
    question = Question(vocabularies=vocabularies(task), words=words, top=ask.top)
    if reason := embeddings.VIEW.lack(question):
        raise UserError(reason)
    answer = embeddings.VIEW.answer(question)
    assert isinstance(answer, Neighbours)
    [[id, near]] = answer.nearest.items()
    ids, cosines = [id, *(other for other, _ in near)], [1.0, *(cosine for _, cosine in near)]
    points, _ = principal_plane(answer.vectors[ids])
    names = answer.vocabulary.tokenizer.tokens(ids)
    return {
        "words": [
            {"name": name, "cosine": cosine, "x": float(point[0]), "y": float(point[1])}
            for name, cosine, point in zip(names, cosines, points, strict=True)
        ]
    }


def position_table(length: int, width: int) -> dict[str, Any]:
    """Sinusoidal position vectors (L, D), and their products, 1 for a vector with itself."""
    table = sinusoids(length, width)
    return {
        "table": _rounded(table),
        "products": _rounded(table @ table.T / (width / 2)),
    }


def rotary_angles(task: Any, length: int) -> dict[str, Any]:
    """Angles by which rotary positions turn each pair, (L, pairs), and what distance does.

    A model with other positions shows how they would turn a head of its size.
    """
    config = task.model.config
    turning = RotaryAngles(rates(config).float().cpu(), length)
    return {
        "angles": _rounded(turning.angles),
        "decay": _rounded(turning.products),
        "is_own": config.positions == "rotary",
    }


def _rounded(values: Tensor) -> Any:
    return values.double().round(decimals=4).tolist()
