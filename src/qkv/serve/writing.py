"""From what a client asks for to the engine's requests, and from their tokens back to text."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, repeat
from typing import Any, TypeVar

from qkv.config import DecodeConfig
from qkv.decode import Event, Handle, Request
from qkv.decode.closed_batch import draws, join
from qkv.decode.request import prompt_limits
from qkv.errors import UserError
from qkv.serve.api.openai_shapes import LEAST_TEMPERATURE, ChatRequest, CompletionRequest, Sampling
from qkv.serve.worker import Generation, Worker
from qkv.tasks import LanguageModel, Translator
from qkv.tasks.texts import listed_texts
from qkv.text import TextStream, Tokenizer

T = TypeVar("T")


@dataclass(frozen=True)
class ScoredToken:
    """A token with its log-probability, and the likeliest ones in its place."""

    token: int
    log_probability: float | None  # None: the first of a prompt
    top: tuple[tuple[int, float], ...] = ()


@dataclass
class Choice:
    """One of the texts that a client gets."""

    index: int
    text: str = ""
    finish: str | None = None
    tokens: list[ScoredToken] = field(default_factory=list)


@dataclass(frozen=True)
class Piece:
    """What a choice has grown by."""

    choice: Choice
    text: str
    tokens: Sequence[ScoredToken] = ()
    finish: str | None = None  # why the choice ends here


@dataclass(frozen=True)
class Asked:
    """One prompt of a client: the requests that are made of it, and its choices."""

    prompt: tuple[int, ...]  # tokens of the prompt, or of a translator's source
    shown: str  # the prompt as text
    requests: list[Request]
    n_choices: int
    stops: tuple[str, ...] = ()
    after: tuple[int, ...] = ()  # tokens after which the text is spelt
    drops_space: bool = False  # of the answer's beginning, which the template put there
    read: Callable[[Any, Sequence[Handle]], list[str]] | None = None
    """Read all choices when all is done, where nothing can be shown before."""


@dataclass(frozen=True)
class Plan:
    """All that a client asks for."""

    asked: list[Asked]
    n_top: int | None = None  # likeliest tokens beside each token; None: no log-probabilities
    echo: bool = False
    n_generated: int | None = None  # 0: prompts alone

    @property
    def requests(self) -> list[Request]:
        """The engine's requests, in order."""
        return [request for asked in self.asked for request in asked.requests]

    @property
    def n_prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(len(asked.prompt) for asked in self.asked)

    @property
    def n_tokens(self) -> int:
        """Most tokens that are read and generated."""
        return self.n_prompt_tokens + sum(request.limit for request in self.requests)

    @property
    def n_rows(self) -> int:
        """Texts that come out."""
        return sum(asked.n_choices for asked in self.asked)


# Plans


def plan_completion(task: Any, body: CompletionRequest) -> Plan:
    """Plan what comes after prompts, or the translations of texts."""
    if isinstance(task, Translator):
        if body.logprobs is not None or body.echo:
            raise UserError(
                "A translator's text is not a continuation; leave logprobs and echo out."
            )
        texts = spelt_texts(task.tokenizers.source, body.prompt, "prompt")
        return plan_translations(task, texts, body)
    prompts, shown = _prompts(task, body)
    config = settings_of(task, body, body.max_tokens)
    plan = Plan([], body.logprobs, body.echo, body.max_tokens)
    for number, prompt in enumerate(prompts):
        requests = [] if body.max_tokens == 0 else _written(task, prompt, config, (), number, body)
        asked = _asked(prompt, shown[number], requests, body.n, config)
        plan.asked.append(replace(asked, after=tuple(prompt)))
    return plan


def plan_chat(task: Any, body: ChatRequest) -> Plan:
    """Plan the answer to the last message of a conversation, or its translation."""
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if limit == 0:
        raise UserError("max_tokens is 0, but an answer needs at least one token; raise it.")
    messages = [message.plain() for message in body.messages]
    listed_texts(message["content"] for message in messages)  # refuses what is no Unicode
    if isinstance(task, Translator):
        if body.logprobs:
            raise UserError("A beam search has no log-probabilities of tokens; leave logprobs out.")
        return plan_translations(task, [messages[-1]["content"]], body, limit)
    settings = _differences(body, limit)
    conversation = task.conversation(messages=messages, tell=lambda sentence: None, **settings)
    prompt, config = conversation.next_prompt()
    n_top = (body.top_logprobs or 0) if body.logprobs else None
    requests = _written(task, prompt, config, conversation.ends, len(messages), body, n_top or 0)
    requests = [replace(request, keep=True) for request in requests]
    asked = _asked(prompt, "", requests, body.n, config)
    space = conversation.template.answer_space
    return Plan([replace(asked, drops_space=space)], n_top)


def plan_translations(
    task: Translator, texts: Sequence[str], body: Sampling, limit: int | None = None
) -> Plan:
    """Plan the translations of texts: the `n` best of each."""
    settings = _differences(body, body.max_tokens if limit is None else limit)
    if not settings.get("sample", task.decode.sample):
        settings = {name: settings[name] for name in settings if name not in ("sample", "beams")}
        settings["beams"] = max(task.decode.beams, body.n)
    if body.stops:
        raise UserError("A translator knows no stop strings; leave stop out.")
    return plan_n_best(task, texts, body.n, **settings)


def plan_n_best(task: Translator, texts: Sequence[str], n: int, **settings: Any) -> Plan:
    """Plan the `n` best translations of texts; blank ones need no request."""
    plan = Plan([])
    for text, request in zip(texts, task.requests(texts, n_best=n, **settings), strict=True):
        source, requests = (request.source, draws(request)) if request else ((), [])
        plan.asked.append(Asked(source, text, requests, n, read=_translations))
    return plan


def _translations(task: Translator, handles: Sequence[Handle]) -> list[str]:
    return [translation.text for translation in task.read(handles)] if handles else []


def _written(
    task: LanguageModel,
    prompt: Sequence[int],
    config: DecodeConfig,
    ends: Sequence[int],
    id: int,
    body: Sampling,
    n_top: int = 0,
) -> list[Request]:
    """The requests of one prompt: one for each choice, or one search for all."""
    (limit,) = prompt_limits(task.model.config, config, [list(prompt)])
    request = task.writer.request(prompt, limit, config, ends, id)
    if isinstance(body, CompletionRequest):
        n_top = body.logprobs or 0
    request = replace(request, n_top=n_top)
    if request.beams > 1:
        if n_top or getattr(body, "logprobs", None) not in (None, False):
            raise UserError(
                "A beam search has no log-probabilities of tokens; set temperature to 0, or leave "
                "logprobs out."
            )
        return [request]
    return [replace(request, draw=draw) for draw in range(body.n)]


def _asked(
    prompt: Sequence[int], shown: str, requests: list[Request], n_choices: int, config: DecodeConfig
) -> Asked:
    is_search = bool(requests) and requests[0].beams > 1
    read = _completions if is_search else None
    return Asked(tuple(prompt), shown, requests, n_choices, config.stop, read=read)


def _completions(task: LanguageModel, handles: Sequence[Handle]) -> list[str]:
    request = handles[0].request
    return [task.read(best, request.prompt, request.rules).text for best in join(handles)]


def settings_of(task: LanguageModel, body: Sampling, limit: int | None) -> DecodeConfig:
    """The settings of decoding that a client asks for."""
    config = task.settings(_differences(body, limit))
    if config.beams > 1 and not config.sample:
        return task.settings(
            {**_differences(body, limit), "n_best": body.n, "beams": max(config.beams, body.n)}
        )
    return replace(config, n_best=1)


def _differences(body: Sampling, limit: int | None) -> dict[str, Any]:
    """What differs from the model's own settings: to name a temperature is to ask for draws."""
    if refused := body.refused():
        raise UserError(f"{refused[0]} is not known here; leave it out.")
    if "" in body.stops:  # found here, and not in the middle of a stream
        raise UserError("A stop string is empty; give it a character, or leave it out.")
    names = ("temperature", "top_p", "top_k", "min_p")
    given = {name: getattr(body, name) for name in names if getattr(body, name) is not None}
    found: dict[str, Any] = {}
    if given:
        is_drawn = given.get("temperature", 1.0) >= LEAST_TEMPERATURE
        found = {**given, "sample": True} if is_drawn else {"sample": False, "beams": 1}
    if body.seed is not None:
        found["seed"] = body.seed
    if body.stops:
        found["stop"] = body.stops
    if limit:
        found["max_length"] = limit
    if body.repetition_penalty is not None:
        found["repetition_penalty"] = body.repetition_penalty
    return found


def spelt_texts(tokenizer: Tokenizer, given: str | Sequence[Any], name: str) -> list[str]:
    """Prompts, the field `name` of a request, as texts; tokens are spelt."""
    if not isinstance(given, str) and not given:
        raise UserError(f"{name} is an empty list; give a text, or a list of them.")
    rows = _listed(given)
    if isinstance(rows[0], str):  # the vocabulary need not be counted, which takes milliseconds
        return rows
    n_tokens = len(tokenizer)
    return [tokenizer.decode(check_tokens(row, n_tokens)) for row in rows]


def _listed(given: str | Sequence[Any]) -> list[Any]:
    """A list of texts or of lists of tokens, where one alone may be given."""
    return [given] if isinstance(given, str) or isinstance(given[0], int) else list(given)


def _prompts(task: LanguageModel, body: CompletionRequest) -> tuple[list[list[int]], list[str]]:
    """The tokens of prompts, and their texts."""
    texts = spelt_texts(task.tokenizer, body.prompt, "prompt")
    context = task.model.config.max_length
    prompts = _listed(body.prompt)
    if isinstance(prompts[0], str):
        only_read = body.max_tokens == 0
        prompts = list(map(task.encode, texts)) if only_read else task.encode_prompts(texts)
    for tokens in prompts:
        if len(tokens) > context - (body.max_tokens != 0):
            raise UserError(
                f"A prompt has {len(tokens):,} tokens, but the model's context of {context:,} must "
                f"hold it and what comes after; shorten it."
            )
    return prompts, texts


def check_tokens(tokens: Sequence[int], vocab_size: int) -> Sequence[int]:
    """Refuse tokens that a vocabulary does not have."""
    if max(tokens) >= vocab_size:
        raise UserError(
            f"A prompt has the token {max(tokens)}, but those of the model go from 0 to "
            f"{vocab_size - 1}."
        )
    return tokens


# Tokens back to text


class _Growing:
    """A choice that is read as its tokens come."""

    def __init__(self, task: LanguageModel, asked: Asked, choice: Choice, scored: bool) -> None:
        self.choice, self._asked, self._scored = choice, asked, scored
        self._stream = TextStream(task.tokenizer, asked.stops, asked.after)
        self._n_tokens = 0

    def push(self, event: Event) -> Piece | None:
        """Take the next token; None: the text has ended before it."""
        choice, request = self.choice, event.handle.request
        if choice.finish:
            return None
        self._n_tokens += 1
        scored = []
        if event.token in request.ends:
            choice.finish, text = "stop", self._stream.finish()
        else:
            text = self._stream.push([event.token])
            if self._scored:
                scored = [ScoredToken(event.token, event.log_probability, event.top)]
            if not self._stream.stopped and self._n_tokens == request.limit:
                choice.finish, text = "length", text + self._stream.finish()
        if self._stream.stopped:
            choice.finish = "stop"
        if self._asked.drops_space and not choice.text:
            text = text.removeprefix(" ")
        choice.text += text
        choice.tokens += scored
        return Piece(choice, text, scored, choice.finish)


class Answer:
    """The choices of one client, which grow while its requests run."""

    def __init__(self, worker: Worker, plan: Plan) -> None:
        self.worker, self.plan = worker, plan
        self.n_generated = 0
        self.choices = [Choice(index) for index in range(plan.n_rows)]
        self.of_prompts = list(_grouped(self.choices, [each.n_choices for each in plan.asked]))

    async def pieces(self, whole: bool = False) -> AsyncGenerator[list[Piece]]:
        """Yield what the choices grow by, until all have ended; `whole`: nobody reads it before."""
        yield await self._echoes()
        if self.plan.n_generated == 0:
            for choice in self.choices:
                choice.finish = "length"
            yield [Piece(choice, "", finish=choice.finish) for choice in self.choices]
            return
        has_stops = any(asked.stops for asked in self.plan.asked)  # which end a text at any token
        generation = self.worker.generate(self.plan.requests, whole and not has_stops)
        sizes = [len(asked.requests) for asked in self.plan.asked]
        handles = list(_grouped(generation.handles, sizes))
        try:
            readers = self._readers(handles)
            async for events in generation:
                self.n_generated += sum(event.handle.request.beams == 1 for event in events)
                yield list(self._grown(generation, readers, events))
            yield await self._read_at_the_end(handles)
        finally:
            generation.cancel()

    def _grown(
        self, generation: Generation, readers: Mapping[Handle, _Growing], events: Sequence[Event]
    ) -> Iterator[Piece]:
        """Read what has come; a text that has ended before its request gives that up."""
        for event in events:
            if growing := readers.get(event.handle):
                grown = growing.push(event)
                if grown is None:
                    continue
                if growing.choice.finish and not event.handle.is_done:
                    generation.cancel([event.handle])
                yield grown

    async def finish(self) -> None:
        """Wait for the whole texts."""
        async for _ in self.pieces(whole=True):
            pass

    async def _echoes(self) -> list[Piece]:
        """Give every choice its prompt, with the log-probabilities of its tokens."""
        if not self.plan.echo:
            return []
        n_top = self.plan.n_top
        scored: list[list[ScoredToken]] = [[] for _ in self.plan.asked]
        if n_top is not None:
            prompts = [list(asked.prompt) for asked in self.plan.asked]
            ranked = await self.worker.gather(_ranked, prompts, n_top=n_top)
            scored = [
                [
                    ScoredToken(prompt[0], None),
                    *(ScoredToken(token, *of) for token, of in zip(prompt[1:], row, strict=True)),
                ]
                for prompt, row in zip(prompts, ranked, strict=True)
            ]
        pieces = []
        for asked, choices, tokens in zip(self.plan.asked, self.of_prompts, scored, strict=True):
            for choice in choices:
                choice.text, choice.tokens = asked.shown, list(tokens)
                pieces.append(Piece(choice, asked.shown, tokens))
        return pieces

    def _readers(self, handles: Sequence[Sequence[Handle]]) -> dict[Handle, _Growing]:
        task, scored = self.worker.task, self.plan.n_top is not None
        return {
            handle: _Growing(task, asked, choice, scored)
            for asked, choices, own in zip(self.plan.asked, self.of_prompts, handles, strict=True)
            if asked.read is None
            for choice, handle in zip(choices, own, strict=True)
        }

    async def _read_at_the_end(self, handles: Sequence[Sequence[Handle]]) -> list[Piece]:
        """Read searches, whose texts are known when all is done."""
        asked_for = zip(self.plan.asked, self.of_prompts, handles, strict=True)
        searches = [(asked.read, choices, own) for asked, choices, own in asked_for if asked.read]
        if not searches:
            return []
        pieces = []
        # Together with those of other clients: the worker takes one kind of job between two steps.
        found = await self.worker.gather(_read, [(read, own) for read, _, own in searches])
        for (_, choices, own), texts in zip(searches, found, strict=True):
            ended = any(best.finished for handle in own for best in handle.hypotheses)
            self.n_generated += sum(  # draws were counted token by token
                len(best.tokens) + best.finished
                for handle in own
                if handle.request.beams > 1
                for best in handle.hypotheses[: len(choices)]
            )
            for choice, text in zip(choices, chain(texts, repeat("")), strict=False):
                choice.text += text
                choice.finish = "stop" if ended or not own else "length"
                pieces.append(Piece(choice, text, finish=choice.finish))
        return pieces


def _grouped(items: Sequence[T], sizes: Sequence[int]) -> Iterator[list[T]]:
    """Give each prompt its own of the items, which stand one behind the other."""
    left = iter(items)
    return (list(islice(left, size)) for size in sizes)


def _read(
    task: Any, searches: Sequence[tuple[Callable[[Any, Sequence[Handle]], list[str]], list[Handle]]]
) -> list[list[str]]:
    return [read(task, handles) for read, handles in searches]


def _ranked(task: LanguageModel, prompts: list[list[int]], n_top: int) -> list[Any]:
    from qkv.tasks.likelihood import ranked_log_probabilities

    return ranked_log_probabilities(task.model, prompts, n_top)
