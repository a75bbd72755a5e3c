"""Tasks other than writing: classify, tag, answer, fill, embed, score and trace texts."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Annotated, Any

import torch
from fastapi import APIRouter, Request
from pydantic import ConfigDict, Field
from torch import Tensor

from qkv.data.formats.images import check_data_url
from qkv.errors import UserError
from qkv.serve.api.openai import check_size, count_tokens, embed_texts
from qkv.serve.given import Body, GivenText, is_image
from qkv.serve.hang_up import answer
from qkv.serve.models import Models
from qkv.serve.observe import note
from qkv.tasks import Answerer, Classifier, Encoder, ImageClassifier, LanguageModel, Tagger

MAX_TRACED = 200_000  # numbers in one answer
Pair = Annotated[list[str], Field(min_length=2, max_length=2)]


def _example(**content: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [content]})


class TextsRequest(Body):
    """One text or several, for one model."""

    model: str | None = Field(None, description="By default the first that fits.")
    texts: str | list[str]


class ClassifyRequest(Body):
    """Texts, pairs of texts, or images as data URLs, to label."""

    model_config = _example(texts=["the cat sees a dog"])

    model: str | None = None
    texts: str | list[str | Pair]
    threshold: float | None = Field(None, ge=0, le=1, description="Of a model of several classes.")


class TagRequest(Body):
    """Texts, or lists of words, whose words are to be labelled."""

    model_config = _example(texts=["the cat sees a dog"])

    model: str | None = None
    texts: str | list[str | list[str]]


class AnswerRequest(Body):
    """A question, and a text that answers it."""

    model_config = _example(question="who sees a dog", context="the cat sees a dog")

    model: str | None = None
    question: str
    context: str
    n_best: int = Field(1, ge=1, le=100)


class FillRequest(TextsRequest):
    """Texts with gaps, written `<mask>`."""

    model_config = _example(texts=["the <mask> sees a dog"])

    top_k: int = Field(5, ge=1, le=1000)


class EmbedRequest(TextsRequest):
    """Texts to embed."""

    model_config = _example(texts=["the cat", "a dog"])


class ScoreRequest(TextsRequest):
    """Texts whose likelihood is wanted."""

    model_config = _example(texts=["the cat sees the dog."])


class TraceRequest(Body):
    """A text, and the quantities of its pass that are wanted, by name."""

    model_config = _example(text="我爱你", keys=["decoder.2.cross_attention.weights"], head=1)

    model: str | None = Field(None, description="By default the first model.")
    text: GivenText
    second: str | None = Field(None, max_length=4000, description="Question, or second of a pair.")
    target: str | None = Field(None, max_length=4000, description="Expected output.")
    keys: list[str] = Field(min_length=1, max_length=64, description="Keys or patterns; see names.")
    head: int | None = Field(None, ge=0)


def router(models: Models) -> APIRouter:
    """Routes of the tasks."""
    routes = APIRouter(tags=["tasks"])

    def add(name: str, function: Callable[..., list[Any]], shape: type[Body]) -> None:
        """Add the route of a task on texts; the fields of its body beside them are settings."""

        async def endpoint(body: Any, request: Request) -> dict[str, Any]:
            own = body.model_dump(exclude={"model", "texts"})
            work = _ask(models, name, body.model, function, body.texts, own, request)
            return await answer(request, work)

        endpoint.__annotations__["body"] = shape
        routes.add_api_route(
            f"/{name}", endpoint, methods=["POST"], name=name, description=function.__doc__
        )

    add("classify", _classified, ClassifyRequest)
    add("tag", _tagged, TagRequest)
    add("fill", _filled, FillRequest)
    add("embed", _embedded, EmbedRequest)
    add("score", _scored, ScoreRequest)

    @routes.post("/answer")
    async def answer_question(body: AnswerRequest, request: Request) -> dict[str, Any]:
        """Find the span of a text that answers a question."""
        pairs, own = [(body.question, body.context)], {"n_best": body.n_best}
        work = _ask(models, "answer", body.model, _answered, pairs, own, request)
        found = await answer(request, work)
        best, *_ = found["results"][0]
        return {"model": found["model"], **best, "n_best": found["results"][0]}

    @routes.post("/trace")
    async def trace(body: TraceRequest, request: Request) -> dict[str, Any]:
        """Give quantities of a pass by name, such as attention weights; null is −∞ or no number."""
        name = body.model or models.names()[0]
        return await answer(request, models.run(name, _traced, name, body))

    return routes


KINDS = {
    "classify": (("classify",), "classify texts"),
    "tag": (("tag",), "tag words"),
    "answer": (("answer",), "answer questions about a text"),
    "fill": (("fill",), "fill gaps"),
    "embed": (("embed", "fill"), "embed texts"),
    "score": (("generate",), "score texts"),
}
"""The tasks of the models that can do something, and what it is called."""


async def _ask(
    models: Models,
    kind: str,
    model: str | None,
    function: Callable[..., list[Any]],
    texts: str | Sequence[Any],
    own: Mapping[str, Hashable],
    request: Request,
) -> dict[str, Any]:
    """Give texts, and the task's own settings, to a model of the right kind."""
    listed = [texts] if isinstance(texts, str) else list(texts)
    flat = [part for text in listed for part in _parts(text)]
    tasks, doing = KINDS[kind]
    sees = kind == "classify" and any(map(is_image, flat))
    name = models.choose(model, tasks, "classify images" if sees else doing, sees)
    if not listed:
        raise UserError("texts is an empty list; give a text, or a list of them.")
    async with models.use(name) as worker:
        n_tokens = await asyncio.to_thread(_n_tokens, worker.task, flat)
        check_size(models.settings, len(listed), n_tokens)
        results = await worker.gather(function, listed, **own)
    note(request, model=name, prompt_tokens=n_tokens)
    return {"model": name, "results": results}


def _parts(text: str | Sequence[str]) -> list[str]:
    return [text] if isinstance(text, str) else list(text)


def _n_tokens(task: Any, texts: list[str]) -> int:
    """Tokens of texts, or patches of images; a path in place of an image is refused."""
    if not isinstance(task, ImageClassifier):
        return count_tokens(task.tokenizer, texts)
    for text in texts:
        check_data_url(text)
    return len(texts) * task.model.config.n_positions


def _classified(
    task: Classifier | ImageClassifier, texts: list[Any], threshold: float | None
) -> list[Any]:
    """Label texts, pairs of texts, or images (data URLs) with probabilities."""
    if isinstance(task, Classifier):
        found = task.classify(_whole(texts), threshold)
    elif threshold is not None:
        raise UserError("threshold: an image has one label; leave it out.")
    else:
        found = task.classify([image for text in texts for image in _parts(text)])
    return [
        {**dataclasses.asdict(one), "label": one.label, "probability": one.probability}
        for one in found
    ]


def _tagged(task: Tagger, texts: list[Any]) -> list[Any]:
    """Label the words of texts, and name the entities that they spell."""
    return [dataclasses.asdict(found) for found in task.tag(_whole(texts))]


def _whole(texts: list[Any]) -> list[Any]:
    """Texts, and lists of texts or words as tuples."""
    return [text if isinstance(text, str) else tuple(text) for text in texts]


def _answered(task: Answerer, texts: list[Any], n_best: int) -> list[Any]:
    found = task.answers(texts, n_best)
    return [[dataclasses.asdict(answer) for answer in answers] for answers in found]


def _filled(task: Encoder, texts: list[str], top_k: int) -> list[Any]:
    """Fill the gaps of texts, with the candidates of each gap."""
    return [dataclasses.asdict(found) for found in task.fill(texts, top_k)]


def _embedded(task: Encoder, texts: list[str]) -> list[Any]:
    """Embed texts as vectors."""
    return [vector.tolist() for vector in embed_texts(task, texts)]


def _scored(task: LanguageModel, texts: list[str]) -> list[Any]:
    """Say how likely texts are to a language model."""
    return [
        {
            **dataclasses.asdict(found),
            "perplexity": found.perplexity,
            "bits_per_byte": found.bits_per_byte,
        }
        for found in task.score(texts)
    ]


def _traced(task: Any, name: str, body: TraceRequest) -> dict[str, Any]:
    if not body.text.strip():
        raise UserError("The text is empty; give one to trace.")
    source: Any = body.text
    target: Any = body.target
    if isinstance(task, Answerer):
        if not body.second:
            raise UserError("This model finds answers in a text; give the question as second.")
        source = (body.second, body.text)
    elif isinstance(task, Classifier) and body.second:
        source = (body.text, body.second)
    elif isinstance(task, ImageClassifier):
        check_data_url(body.text)
    elif isinstance(task, Tagger) and target is not None:
        target = target.split()
    found = task.trace(source, target)
    keys = [key for pattern in body.keys for key in found.names(pattern)]
    if missing := [key for key in body.keys if not found.names(key)]:
        raise UserError(f"This model has no quantity {missing[0]!r}; its names are in `names`.")
    if sum(math.prod(found.shape(key)) for key in keys) > MAX_TRACED:
        raise UserError(f"These are more than {MAX_TRACED:,} numbers; ask for fewer keys.")
    values = found.peek(keys, body.head)
    return {
        "model": name,
        "tokens": {side: found.tokens(side) for side in found.inputs.sides},
        "names": found.names("*"),
        "quantities": {
            key: {
                "formula": found.formula(key),
                "axes": found.axes(key),
                "shape": list(value.shape),
                "values": _numbers(value),
            }
            for key, value in values.items()
        },
    }


def _numbers(value: Tensor) -> Any:
    """Nested lists of a tensor, None where a number is not finite."""
    if value.dim():
        return [_numbers(part) for part in value]
    return value.item() if torch.isfinite(value) else None
