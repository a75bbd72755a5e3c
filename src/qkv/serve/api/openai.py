"""The API shaped like OpenAI's: models, completions, chats, embeddings."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from torch import Tensor

from qkv.errors import UserError
from qkv.serve.api.openai_shapes import ChatRequest, CompletionRequest, EmbeddingRequest, Sampling
from qkv.serve.errors import error_content
from qkv.serve.hang_up import EventStream, answer
from qkv.serve.models import Models
from qkv.serve.observe import note, random_id
from qkv.serve.settings import ServeSettings
from qkv.serve.token_texts import TokenTexts
from qkv.serve.worker import Worker
from qkv.serve.writing import (
    Answer,
    Choice,
    Piece,
    Plan,
    ScoredToken,
    plan_chat,
    plan_completion,
    spelt_texts,
)
from qkv.tasks import Encoder
from qkv.tasks.texts import listed_texts

WRITING = ("generate", "translate", "denoise")
EMBEDDING = ("embed", "fill")
STARTED = int(time.time())


def router(models: Models) -> APIRouter:
    """Routes under /v1, as OpenAI's clients ask them."""
    routes = APIRouter(prefix="/v1", tags=["OpenAI"])

    @routes.get("/models")
    async def list_models() -> dict[str, Any]:
        """List the models of this server."""
        return {"object": "list", "data": [_model(models, name) for name in models.names()]}

    @routes.get("/models/{model}")
    async def get_model(model: str) -> dict[str, Any]:
        """Describe one model."""
        return _model(models, model)

    @routes.post("/completions")
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Continue prompts, with log-probabilities on demand; a translator translates them."""
        writing = _Writing(models, body, request, plan_completion, _CompletionShape)
        return await writing.response()

    @routes.post("/chat/completions")
    async def chat(body: ChatRequest, request: Request) -> Response:
        """Answer the last message of a conversation; a translator translates it."""
        return await _Writing(models, body, request, plan_chat, _ChatShape).response()

    @routes.post("/embeddings")
    async def embeddings(body: EmbeddingRequest, request: Request) -> JSONResponse:
        """Embed texts as vectors."""
        return await answer(request, _embed(models, body, request))

    return routes


def _model(models: Models, name: str) -> dict[str, Any]:
    about = models.describe(name)
    return {"object": "model", "created": STARTED, "owned_by": "qkv", **about}


class _Writing:
    """A request for text: the model that it goes to, its plan, and the shape of its answer."""

    def __init__(
        self,
        models: Models,
        body: Sampling,
        request: Request,
        plan: Callable[[Any, Any], Plan],
        shape: type[_Shape],
    ) -> None:
        self.models, self.body, self.request = models, body, request
        self.plan, self.shape = plan, shape
        self.seconds = models.settings.max_seconds
        self.name = models.choose(body.model, WRITING, "write text")
        note(request, model=self.name)

    async def response(self) -> Response:
        """Answer at once, or as a stream."""
        if not self.body.stream:
            return await answer(self.request, self._whole())
        stack = AsyncExitStack()
        try:
            # What the client did wrong must be found before the stream begins.
            async with asyncio.timeout(self.seconds):
                written, shape = await answer(self.request, self._ready(stack))
        except BaseException:
            await stack.aclose()
            raise
        return EventStream(self._events(stack, written, shape), stack)

    async def _ready(self, stack: AsyncExitStack) -> tuple[Answer, _Shape]:
        """Load the model, and plan what to do within the limits."""
        worker = await stack.enter_async_context(self.models.hold(self.name))
        plan = await asyncio.to_thread(self.plan, worker.task, self.body)
        check_size(self.models.settings, plan.n_rows, plan.n_tokens)
        return Answer(worker, plan), self.shape(self.name, self.body, worker)

    async def _whole(self) -> JSONResponse:
        async with AsyncExitStack() as stack, asyncio.timeout(self.seconds):
            written, shape = await self._ready(stack)
            await written.finish()
            content = shape.whole(written)
        self._count(written)
        return JSONResponse(content)

    async def _events(
        self, stack: AsyncExitStack, written: Answer, shape: _Shape
    ) -> AsyncGenerator[str]:
        """Server-sent events of a text as it grows."""
        try:
            async with stack, asyncio.timeout(self.seconds):
                for part in shape.start(written):
                    yield _event(shape.chunk(part))
                async with aclosing(written.pieces()) as parts:
                    async for pieces in parts:
                        shown = [x for x in pieces if x.text or x.tokens or x.finish]
                        # What has come together is sent together.
                        if shown:
                            yield "".join(_event(shape.chunk(shape.part(x))) for x in shown)
                if self.body.includes_usage:
                    yield _event({**shape.chunk(), "usage": usage(written)})
        except Exception as error:
            yield _event(error_content(error))
        finally:
            self._count(written)
        yield "data: [DONE]\n\n"

    def _count(self, written: Answer) -> None:
        read, generated = written.plan.n_prompt_tokens, written.n_generated
        note(self.request, prompt_tokens=read, completion_tokens=generated)


async def _embed(models: Models, body: EmbeddingRequest, request: Request) -> JSONResponse:
    name = models.choose(body.model, EMBEDDING, "embed texts")
    async with models.use(name) as worker:
        texts = spelt_texts(worker.task.tokenizer, body.input, "input")
        n_tokens = await asyncio.to_thread(count_tokens, worker.task.tokenizer, texts)
        check_size(models.settings, len(texts), n_tokens)
        vectors = await worker.gather(embed_texts, texts)
    if body.dimensions not in (None, len(vectors[0])):
        raise UserError(
            f"dimensions: these vectors have {len(vectors[0])} numbers, and no other size; "
            f"leave it out."
        )
    note(request, model=name, prompt_tokens=n_tokens)
    data = [
        {"object": "embedding", "index": index, "embedding": _vector(vector, body)}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return JSONResponse({"object": "list", "data": data, "model": name, "usage": usage})


def check_size(settings: ServeSettings, n_rows: int, n_tokens: int) -> None:
    """Refuse a request that is larger than the server allows."""
    if n_rows > settings.max_rows:
        raise UserError(
            f"This request is for {n_rows:,} texts, but the server takes at most "
            f"{settings.max_rows:,} at a time; ask for fewer."
        )
    if n_tokens > settings.max_tokens:
        raise UserError(
            f"This request takes {n_tokens:,} tokens, but the server takes at most "
            f"{settings.max_tokens:,} at a time; shorten it, or lower max_tokens."
        )


def count_tokens(tokenizer: Any, texts: Sequence[str]) -> int:
    """Number of tokens of texts; refuses those that are no Unicode."""
    return sum(map(len, tokenizer.encode_many(listed_texts(texts))))


def embed_texts(task: Encoder, texts: list[str]) -> list[Tensor]:
    """The vector of each text."""
    return list(task.embed(texts))


def _vector(vector: Tensor, body: EmbeddingRequest) -> list[float] | str:
    if body.encoding_format == "float":
        numbers: list[float] = vector.tolist()
        return numbers
    return base64.b64encode(vector.numpy().astype("<f4").tobytes()).decode()


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"


class _Shape(ABC):
    """How the texts of one request are written as JSON."""

    kind, chunk_kind, prefix = "", "", ""

    def __init__(self, name: str, body: Any, worker: Worker) -> None:
        self.body = body
        id = f"{self.prefix}-{random_id(128)}"
        self._head = {"id": id, "created": int(time.time()), "model": name}
        scored = body.logprobs not in (None, False)
        self._texts = TokenTexts(worker.task.tokenizer) if scored else None
        self._offsets: dict[int, int] = {}

    def whole(self, written: Answer) -> dict[str, Any]:
        """All texts at once."""
        choices = [self.choice(choice) for choice in written.choices]
        return {**self._head, "object": self.kind, "choices": choices, "usage": usage(written)}

    @abstractmethod
    def choice(self, choice: Choice) -> dict[str, Any]:
        """A whole text."""

    def start(self, written: Answer) -> list[dict[str, Any]]:
        """What each choice begins with in a stream."""
        return []

    @abstractmethod
    def part(self, piece: Piece) -> dict[str, Any]:
        """What a choice has grown by."""

    def chunk(self, *parts: dict[str, Any]) -> dict[str, Any]:
        """A message of a stream, about some choices or none."""
        content = {**self._head, "object": self.chunk_kind, "choices": list(parts)}
        return {**content, "usage": None} if self.body.includes_usage else content


def usage(written: Answer) -> dict[str, int]:
    """Numbers of tokens read and generated."""
    read, generated = written.plan.n_prompt_tokens, written.n_generated
    return {
        "prompt_tokens": read,
        "completion_tokens": generated,
        "total_tokens": read + generated,
    }


class _CompletionShape(_Shape):
    kind = chunk_kind = "text_completion"
    prefix = "cmpl"

    def choice(self, choice: Choice) -> dict[str, Any]:
        return self.part(Piece(choice, choice.text, choice.tokens, choice.finish))

    def part(self, piece: Piece) -> dict[str, Any]:
        return {
            "index": piece.choice.index,
            "text": piece.text,
            "logprobs": self._log_probabilities(piece.choice.index, piece.tokens),
            "finish_reason": piece.finish,
        }

    def _log_probabilities(
        self, index: int, tokens: Sequence[ScoredToken]
    ) -> dict[str, Any] | None:
        if self._texts is None:
            return None
        spelt, offsets, offset = [], [], self._offsets.get(index, 0)
        for token in tokens:
            is_text = self._texts.is_text(token.token)
            begins = is_text and not offset and self.body.echo
            spell = self._texts.first_text if begins else self._texts.text
            spelt.append(spell(token.token))
            offsets.append(offset)
            offset += len(spelt[-1]) if is_text else 0
        self._offsets[index] = offset
        return {
            "tokens": spelt,
            "token_logprobs": [token.log_probability for token in tokens],
            "top_logprobs": [self._top(token) for token in tokens],
            "text_offset": offsets,
        }

    def _top(self, token: ScoredToken) -> dict[str, float] | None:
        """The likeliest tokens, and the one that is there."""
        assert self._texts is not None
        if token.log_probability is None:
            return None
        found: dict[str, float] = {}
        for other, value in (*token.top, (token.token, token.log_probability)):
            found.setdefault(self._texts.text(other), value)
        return found


class _ChatShape(_Shape):
    kind, chunk_kind, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def choice(self, choice: Choice) -> dict[str, Any]:
        return {
            "index": choice.index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": self._log_probabilities(choice.tokens),
            "finish_reason": choice.finish,
        }

    def start(self, written: Answer) -> list[dict[str, Any]]:
        """Say who speaks."""
        delta = {"role": "assistant", "content": ""}
        begun = {"delta": delta, "logprobs": None, "finish_reason": None}
        return [{"index": choice.index, **begun} for choice in written.choices]

    def part(self, piece: Piece) -> dict[str, Any]:
        return {
            "index": piece.choice.index,
            "delta": {"content": piece.text} if piece.text else {},
            "logprobs": self._log_probabilities(piece.tokens),
            "finish_reason": piece.finish,
        }

    def _log_probabilities(self, tokens: Sequence[ScoredToken]) -> dict[str, Any] | None:
        if self._texts is None:
            return None
        return {"content": [self._token(token) for token in tokens], "refusal": None}

    def _token(self, token: ScoredToken) -> dict[str, Any]:
        top = [self._one(other, value) for other, value in token.top]
        return {**self._one(token.token, token.log_probability), "top_logprobs": top}

    def _one(self, token: int, log_probability: float | None) -> dict[str, Any]:
        assert self._texts is not None
        spelt, content = self._texts.text(token), self._texts.bytes(token)
        return {"token": spelt, "logprob": log_probability, "bytes": content}
