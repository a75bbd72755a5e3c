"""The models that a server offers: loaded at first use, the least recently used unloaded."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.config import ModelConfig
from qkv.convert.model_folder import StoredModel, load_config, load_languages
from qkv.convert.opening import open_model
from qkv.errors import UserError
from qkv.model import parameter_shapes
from qkv.serve.settings import ServeSettings
from qkv.serve.worker import Worker
from qkv.tasks import load
from qkv.text.languages import THREE_LETTERS, Languages

LOG = logging.getLogger("qkv.serve")
BYTES = {"fp32": 4.0, "bf16": 2.0, "int8": 1.1, "int4": 0.65}  # of a weight in memory
LAYERS = ("n_encoder_layers", "n_decoder_layers")
DESCRIBED = ("max_length", "vocab_size", "d_model", "n_heads", *LAYERS)
PAIR = re.compile(r"(?:^|[-_])([a-z]{2})[-_]([a-z]{2})$")


class UnknownModelError(UserError):
    """A model that is not offered here, or none that can do what is asked for."""


class BusyError(UserError):
    """A model that has too much to do already."""


class UnavailableError(UserError):
    """A model that there is no memory for, or that cannot be loaded."""


@dataclass(frozen=True)
class Offer:
    """A model that can be asked for: where it is, and what its files say of it."""

    name: str
    path: str
    stored: StoredModel
    task: str
    config: ModelConfig
    languages: Languages | None
    pair: tuple[str, str] | None  # of languages, where the name of a translator tells them
    n_parameters: int
    n_bytes: int  # of the weights in memory, about


class Models:
    """The models of a server, by name; those in use are loaded, each in a thread of its own."""

    def __init__(self, given: Sequence[str], settings: ServeSettings | None = None) -> None:
        """Open models by path, or packaged or pulled name; `NAME=PATH` gives one another name."""
        self.settings = settings or ServeSettings()
        self._offers: dict[str, Offer] = {}
        for model in given:
            offer = _offer(model, self.settings)
            if offer.name in self._offers:
                raise UserError(
                    f"Two models have the name {offer.name!r}; give one of them another: "
                    f"{offer.name}2={offer.path}."
                )
            self._offers[offer.name] = offer
        self._workers: dict[str, Worker] = {}  # the most recently used last
        self._loading = asyncio.Lock()
        self.is_closing = False

    def names(self) -> list[str]:
        """Names of all models, in the order in which they were given."""
        return list(self._offers)

    def offer(self, name: str) -> Offer:
        """Describe a model without loading it."""
        if name not in self._offers:
            known = ", ".join(self._offers)
            raise UnknownModelError(f"There is no model {name!r} here; this server has {known}.")
        return self._offers[name]

    def describe(self, name: str) -> dict[str, Any]:
        """Describe a model by what its files say, without loading it."""
        offer, config = self.offer(name), self.offer(name).config
        return {
            "id": name,
            "task": offer.task,
            "family": config.family,
            "parameters": offer.n_parameters,
            **{name: getattr(config, name) for name in DESCRIBED},
            "loaded": name in self._workers,
        }

    def choose(
        self, name: str | None, tasks: Iterable[str], doing: str, images: bool = False
    ) -> str:
        """Return the model of this name, or by default the first one that has one of these tasks.

        `doing` says in errors what it is wanted for; `images`: a model that reads them.
        """
        offers = list(self._offers.values()) if name is None else [self.offer(name)]
        for offer in offers:
            if offer.task in tasks and bool(offer.config.patch_size) == images:
                return offer.name
        if name is None:
            raise UnknownModelError(
                f"No model of this server can {doing}; start it with one that can: "
                f"`qkv serve MODEL`."
            )
        sees = " images" if offers[0].config.patch_size else ""
        raise UserError(
            f"The model {name!r} is made to {offers[0].task}{sees}, so that it cannot {doing}; "
            f"name another one."
        )

    def workers(self) -> Mapping[str, Worker]:
        """The workers of the models that are loaded, or being loaded."""
        return self._workers

    async def run(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return function(task, *arguments), run in the model's own thread, nothing else beside."""
        async with self.use(name) as worker:
            return await worker.run(function, *arguments)

    @asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[Worker]:
        """Hold a loaded model for one answer, which is given up when it takes too long."""
        async with self.hold(name) as worker, asyncio.timeout(self.settings.max_seconds):
            yield worker

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[Worker]:
        """Hold a loaded model, which stays loaded meanwhile."""
        worker = await self._worker(self.offer(name))
        worker.n_users += 1
        try:
            if worker.n_users > self.settings.max_queue:
                raise BusyError(
                    f"The model {name!r} has {self.settings.max_queue} requests to answer already; "
                    f"try again in a moment."
                )
            yield await self._loaded(worker)
        finally:
            worker.n_users -= 1

    async def _loaded(self, worker: Worker) -> Worker:
        """Wait until a model is loaded; its clients need not know what is wrong with its files."""
        try:
            return await worker.loaded()
        except Exception as error:
            if self._workers.get(worker.name) is worker:
                del self._workers[worker.name]  # the next request tries again
            LOG.error("not loaded", extra={"facts": {"model": worker.name, "reason": str(error)}})
            raise UnavailableError(
                f"The model {worker.name!r} cannot be loaded; the server's log says why."
            ) from error

    async def close(self, timeout: float | None = None) -> None:
        """Let all models finish what they were given."""
        self.is_closing = True
        workers = list(self._workers.values())
        for worker in workers:
            worker.close()
        for worker in workers:
            await asyncio.to_thread(worker.join, timeout)
        self._workers.clear()

    async def _worker(self, offer: Offer) -> Worker:
        async with self._loading:
            if offer.name not in self._workers:
                await self._make_room(offer)
                self._workers[offer.name] = Worker(offer.name, lambda: self._load(offer))
            self._workers[offer.name] = self._workers.pop(offer.name)
            return self._workers[offer.name]

    def _load(self, offer: Offer) -> Any:
        task = load(offer.path, self.settings.device, self.settings.dtype)
        # What is loaded stays; to search it for garbage takes a tenth of a second of all requests.
        gc.collect()
        gc.freeze()
        return task

    async def _make_room(self, offer: Offer) -> None:
        """Unload idle models, the least recently used first, until this one fits."""
        budget = self.settings.memory
        if not budget:
            return
        if offer.n_bytes > budget:
            raise UnavailableError(
                f"The model {offer.name!r} needs about {offer.n_bytes:,} bytes, but --memory "
                f"allows {budget:,}; raise it, or load the model in fewer bits."
            )
        while self._n_bytes() + offer.n_bytes > budget:
            idle = [name for name, worker in self._workers.items() if not worker.n_users]
            if not idle:
                raise UnavailableError(
                    f"There is no memory for {offer.name!r} while the other models answer; try "
                    f"again in a moment."
                )
            worker = self._workers.pop(idle[0])
            worker.close()
            await asyncio.to_thread(worker.join)
            gc.unfreeze()
            gc.collect()

    def _n_bytes(self) -> int:
        return sum(self._offers[name].n_bytes for name in self._workers)


def _offer(given: str, settings: ServeSettings) -> Offer:
    name, equals, path = given.partition("=")
    if not equals or Path(given).exists():
        name, path = _short_name(given), given
    stored = open_model(path, settings.dtype)
    task, config, _ = load_config(stored)
    count = sum(math.prod(shape) for shape in parameter_shapes(config).values())
    return Offer(
        name,
        path,
        stored,
        task,
        config,
        load_languages(stored) if task == "translate" else None,
        _pair(name) if task == "translate" else None,
        count,
        _n_bytes(stored, count, settings.dtype or stored.dtype),
    )


def _n_bytes(stored: StoredModel, count: int, dtype: str | None) -> int:
    """Bytes of the weights in memory, about: as on disk, unless a precision is asked for."""
    if dtype is not None:
        return int(count * BYTES[dtype])
    on_disk = sum(file.stat().st_size for file in stored.path.glob("*.safetensors"))
    return on_disk or int(count * BYTES["fp32"])


def _short_name(given: str) -> str:
    """The last part of a path or of a pulled name, without the ending of a GGUF file."""
    path = Path(given)
    if given in (".", "..") or given.endswith(".."):
        path = path.resolve()
    return path.stem if path.suffix.lower() == ".gguf" else path.name


def _pair(name: str) -> tuple[str, str] | None:
    found = PAIR.search(name.lower())
    if found and found[1] in THREE_LETTERS and found[2] in THREE_LETTERS:
        return found[1], found[2]
    return None
