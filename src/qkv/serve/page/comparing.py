"""Questions about several texts: predictions of each position, one word in many sentences."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from qkv.errors import UserError
from qkv.inspect.answers.embeddings import nearest, principal_plane
from qkv.model import sinusoids
from qkv.model.positions.rotary import rates
from qkv.tasks import Encoder, LanguageModel, Translator


class PredictionsAsk(BaseModel):
    """A text of which each position is predicted from what the model may see."""

    text: str = Field(max_length=400)
    top: int = Field(3, ge=1, le=10)


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

    A masked encoder is asked for each token with that token hidden, a decoder for each token from
    those before it.
    """
    if isinstance(task, Encoder) and task.model.config.head == "masked":
        return _of_encoder(task, ask)
    if isinstance(task, LanguageModel):
        return _of_decoder(task, ask)
    raise UserError("This model predicts no tokens of its own text; choose a BERT or a GPT.")


def _of_encoder(task: Encoder, ask: PredictionsAsk) -> dict[str, Any]:
    plain = task.trace(ask.text)
    tokens, names = plain.inputs.source, plain.tokens("source")
    assert tokens is not None
    ids = tokens.tokens[0]
    mask_id = task.tokenizer.mask_id
    inner = [n for n, id in enumerate(ids.tolist()) if id not in _frame(task)]
    hidden = plain.inputs.repeat_row(0, max(1, len(inner)))
    assert hidden.source is not None
    for row, position in enumerate(inner):
        hidden.source.tokens[row, position] = mask_id
    trace = type(plain)(plain.model, hidden)
    probabilities = trace["probabilities"]
    found = [_candidates(probabilities[row, n], task, ask.top) for row, n in enumerate(inner)]
    places = dict(zip(inner, found, strict=True))
    return {
        "family": "encoder",
        "tokens": names,
        "visible": torch.ones(len(names), len(names)).tolist(),
        "predictions": [places.get(n, []) for n in range(len(names))],
    }


def _frame(task: Encoder) -> set[int]:
    """Ids around a text that nobody asks for."""
    tokenizer = task.tokenizer
    return {id for id in (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) if id is not None}


def _of_decoder(task: LanguageModel, ask: PredictionsAsk) -> dict[str, Any]:
    trace = task.trace(ask.text)
    names, probabilities = trace.tokens("target"), trace["probabilities"][0]
    first = trace.get("decoder.0.self_attention.scores", head=0)[0, 0]
    found = [_candidates(row, task, ask.top) for row in probabilities[:-1]]
    return {
        "family": "decoder",
        "tokens": names,
        "visible": torch.isfinite(first).float().tolist(),
        "predictions": [[], *found],
    }


def _candidates(row: Tensor, task: Any, top: int) -> list[dict[str, Any]]:
    best = row.topk(top)
    names = task.tokenizer.tokens(best.indices.tolist())
    return [
        {"name": name, "probability": value}
        for name, value in zip(names, best.values.tolist(), strict=True)
    ]


def word_in_sentences(task: Any, ask: WordAsk) -> dict[str, Any]:
    """Cosines between a word's vectors in several sentences, after each layer, (L + 1, n, n)."""
    vectors = [_word_vectors(task, sentence, ask.word) for sentence in ask.sentences]
    stacked = torch.stack(vectors, dim=1)  # (L + 1, n, D)
    unit = stacked / stacked.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    return {"word": ask.word, "cosines": (unit @ unit.transpose(1, 2)).tolist()}


def _word_vectors(task: Any, sentence: str, word: str) -> Tensor:
    """The mean vector of a word's tokens at the input and after each layer, (L + 1, D)."""
    if word.lower() not in sentence.lower():
        raise UserError(f"{word!r} does not stand in {sentence!r}; write sentences that have it.")
    trace = task.trace(sentence)
    stack, side = ("encoder", "source") if "encoder.output" in trace else ("decoder", "target")
    tokenizer = task.tokenizers.source if isinstance(task, Translator) else task.tokenizer
    positions = _positions(tokenizer, trace.inputs.sides[side].row_tokens(0).tolist(), word)
    keys = [f"{side}.input", *trace.names(f"{stack}.*.feed_forward.residual")]
    values = trace.peek(keys)
    return torch.stack([values[key][0, positions].float().mean(0) for key in keys])


def _positions(tokenizer: Any, ids: list[int], word: str) -> list[int]:
    """Positions of the shortest run of tokens whose text holds the word."""
    wanted = word.lower()
    for length in range(1, len(ids) + 1):
        for start in range(len(ids) - length + 1):
            if wanted in tokenizer.decode(ids[start : start + length]).lower():
                return list(range(start, start + length))
    raise UserError(f"The tokens of {word!r} were not found; try another word.")


def neighbours(task: Any, ask: NeighboursAsk) -> dict[str, Any]:
    """The tokens nearest to a word in the embedding table, and all of them on a plane."""
    if isinstance(task, Translator):
        tokenizer, table = task.tokenizers.source, task.model.source_embedding.table.weight
    else:
        tokenizer, table = task.tokenizer, task.model.embedding.table.weight
    ids = next((x for x in map(tokenizer.encode, (f" {ask.word}", ask.word)) if len(x) == 1), None)
    if ids is None or ids[0] == tokenizer.unk_id:
        pieces = " ".join(tokenizer.tokens(tokenizer.encode(ask.word)))
        raise UserError(f"{ask.word!r} is not one token of this model but {pieces!r}.")
    vectors = table.detach().float().cpu().numpy()
    near = nearest(vectors, ids[0], ask.top)
    chosen = [ids[0], *(id for id, _ in near)]
    points, _ = principal_plane(vectors[chosen])
    return {
        "words": [
            {"name": name, "cosine": cosine, "x": float(point[0]), "y": float(point[1])}
            for name, cosine, point in zip(
                tokenizer.tokens(chosen), [1.0, *(c for _, c in near)], points, strict=True
            )
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
    """Angles by which rotary positions turn each pair, (L, pairs), and what distance does."""
    config = task.model.config
    if config.positions != "rotary":
        return {"angles": [], "decay": []}
    angles = torch.arange(length)[:, None] * rates(config)
    return {"angles": _rounded(angles), "decay": _rounded(angles.cos().mean(-1))}


def _rounded(values: Tensor) -> Any:
    return values.double().round(decimals=4).tolist()
