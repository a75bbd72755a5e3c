"""Workers: the processes that train one model together, and what they tell each other."""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count, islice
from typing import Any, TypeVar

import torch
from torch import Tensor

from qkv.errors import UserError
from qkv.training.interrupt import TrainingInterrupt

T = TypeVar("T")
U = TypeVar("U")
PATIENCE = timedelta(minutes=30)  # of a worker that waits for the others in a step
PREPARATION = timedelta(days=7)  # of one that waits for data to be read and encoded
RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT"  # set by torchrun, and by `qkv train --restarts`
FAILED = "qkv/failed"  # key of the store: the first worker that failed
# What torch says of a worker that is gone, in the words of gloo and NCCL:
LOST = ("peer", "onnection", "Broken pipe", "imed out", "NCCL")


@dataclass(frozen=True, eq=False)
class Distribution:
    """A process that trains alone, or one of several that torch.distributed connects.

    What one that is alone says to all workers comes back as it is.
    """

    rank: int = 0
    """Number of this worker."""
    size: int = 1
    """Number of all workers."""
    tensor_size: int = 1
    """Neighbouring workers that share the matrices of one copy of the model, and its data."""
    store: Any = None
    """Where several workers meet."""
    turns: Iterator[int] = field(default_factory=count)
    """Numbers the times that all have met."""

    @property
    def is_main(self) -> bool:
        """Whether this worker writes files and talks to people."""
        return self.rank == 0

    @property
    def data_rank(self) -> int:
        """Number of this worker's share of each training batch."""
        return self.rank // self.tensor_size

    @property
    def data_size(self) -> int:
        """Number of shares that a training batch is split into."""
        return self.size // self.tensor_size

    def reduce_any(self, *flags: bool) -> tuple[bool, ...]:
        """Tell for each flag whether it is set on any worker, so that all decide alike."""
        return tuple(total > 0 for total in self.reduce_sum(*map(float, flags)))

    def reduce_sum(self, *numbers: float) -> tuple[float, ...]:
        """Add up numbers over all workers, in float64."""
        if self.size == 1:
            return numbers
        total = torch.tensor(numbers, dtype=torch.float64)  # on the CPU: no GPU is waited for
        torch.distributed.all_reduce(total)
        return tuple(total.tolist())

    def reduce_labels(self, n_labels: int) -> int:
        """Count the labels of all shares of a batch."""
        return round(self.reduce_sum(n_labels if self._counts else 0)[0])

    def reduce_shares(self, tensor: Tensor) -> Tensor:
        """Add up a tensor over the shares of a batch."""
        if self.size == 1:
            return tensor
        total = tensor.clone() if self._counts else torch.zeros_like(tensor)
        torch.distributed.all_reduce(total)
        return total

    @property
    def _counts(self) -> bool:
        """Whether this worker speaks for those that read the same share."""
        return self.rank % self.tensor_size == 0

    def gather(self, value: T) -> list[T]:
        """Collect a value of every worker, in their order."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(values, value)
        return values

    def gather_rows(self, rows: Tensor, stand_in: bool) -> tuple[Tensor, int]:
        """Lay the rows of all shares below each other; return the index of the first own one."""
        if self.size == 1:
            return rows, 0
        # Of neighbours with the same share, the first speaks for all.
        counts = self.gather(0 if stand_in else len(rows))[:: self.tensor_size]
        gathered: Tensor = _GatheredRows.apply(rows, counts, self)  # type: ignore[no-untyped-call]
        return gathered, sum(counts[: self.data_rank])

    def from_main(self, make: Callable[[], T]) -> T:
        """Let the main worker make a value that all others wait for, however long it takes."""
        if self.size == 1:
            return make()
        key = f"qkv/made/{next(self.turns)}"
        if self.is_main:
            value = make()
            self.store.set(key, pickle.dumps(value))
            return value
        self.store.wait([key], PREPARATION)
        received: T = pickle.loads(self.store.get(key))
        return received

    def barrier(self) -> None:
        """Wait until all workers are here, however long it takes."""
        if self.size == 1:
            return
        key = f"qkv/met/{next(self.turns)}"
        if self.store.add(key, 1) == self.size:
            self.store.set(f"{key}/all", "1")
        self.store.wait([f"{key}/all"], PREPARATION)

    def spread(self, ask: Callable[..., Sequence[U]]) -> Callable[..., Sequence[U]]:
        """Return `ask` with its list of inputs shared out to the workers, for outputs of all."""

        def spread(inputs: Sequence[Any], *more: Any, **options: Any) -> Sequence[U]:
            own = list(self.share(inputs))
            parts = self.gather(list(ask(own, *more, **options)) if own else [])
            return [parts[index % self.size][index // self.size] for index in range(len(inputs))]

        return spread

    def share(self, values: Iterable[T]) -> Iterable[T]:
        """Return those of some values that this worker is to work on."""
        return islice(values, self.rank, None, self.size)

    def claim_failure(self) -> bool:
        """Whether this worker is the first that failed, whose message is what people see."""
        try:
            return bool(
                self.store.compare_set(FAILED, "", str(self.rank)) == str(self.rank).encode()
            )
        except RuntimeError:  # the store's host is gone
            return self.is_main


ALONE = Distribution()


class _GatheredRows(torch.autograd.Function):
    """All workers' rows; the gradient of each is the sum of what all workers made of it."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: Sequence[int], workers: Distribution) -> Tensor:
        ctx.counts, ctx.workers, ctx.n_rows = counts, workers, len(rows)
        own = counts[workers.data_rank]
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[:own] = rows[:own]
        parts = [torch.empty_like(padded) for _ in range(workers.size)]
        torch.distributed.all_gather(parts, padded)
        shares = zip(parts[:: workers.tensor_size], counts, strict=True)
        return torch.cat([part[:n_rows] for part, n_rows in shares])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        total = grad / ctx.workers.tensor_size
        torch.distributed.all_reduce(total)
        rank, counts = ctx.workers.data_rank, ctx.counts
        first = sum(counts[:rank])
        own = grad.new_zeros(ctx.n_rows, *grad.shape[1:])
        own[: counts[rank]] = total[first : first + counts[rank]]
        return own, None, None


def started_by_launcher() -> bool:
    """Whether torchrun, or `qkv train --gpus`, has started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def restarted() -> bool:
    """Whether a launcher has started this run again, after a worker was lost."""
    return int(os.environ.get(RESTART_COUNT, "0")) > 0


def local_device(device: torch.device) -> torch.device:
    """Return the GPU of this worker on its machine, where it is to use one."""
    if device.type != "cuda" or not started_by_launcher():
        return device
    number, n_gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if number >= n_gpus:
        raise UserError(
            f"Worker {number} of this machine has no GPU of its own (there are {n_gpus}); start "
            f"fewer workers, or set train.device = 'cpu'."
        )
    return torch.device("cuda", number)


def _meeting_point() -> tuple[Any, int]:
    """Return the store in which the workers of this start meet, and this worker's number.

    torchrun may keep one store over all restarts, in which the addresses of lost workers stay.
    """
    from torch.distributed.rendezvous import rendezvous

    store, rank, _ = next(iter(rendezvous("env://", timeout=PATIENCE)))
    attempt = os.environ.get(RESTART_COUNT, "0")
    prefixed = torch.distributed.PrefixStore(f"qkv/attempt/{attempt}", store)  # type: ignore[attr-defined]
    return prefixed, rank


@contextmanager
def joined(device: torch.device, tensor_size: int = 1) -> Iterator[Distribution]:
    """Join the workers that a launcher has started; alone where there is none."""
    if not started_by_launcher():
        yield ALONE
        return
    size = int(os.environ["WORLD_SIZE"])
    if size % tensor_size:
        raise UserError(
            f"train.tensor_parallel ({tensor_size}) must divide the number of workers ({size})."
        )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    store, rank = _meeting_point()
    torch.distributed.init_process_group(
        backend, timeout=PATIENCE, store=store, rank=rank, world_size=size
    )
    workers = Distribution(rank, size, tensor_size, store)
    if not workers.is_main:
        warnings.simplefilter("ignore")  # the main worker warns of the same
    with one_message(workers):
        yield workers
    torch.distributed.destroy_process_group()


@contextmanager
def one_message(workers: Distribution) -> Iterator[None]:
    """Let the first worker that fails say why, and all others end without a word."""
    try:
        yield
    except TrainingInterrupt as stop:
        if workers.is_main:
            raise
        raise SystemExit(128 + stop.signal_number) from None
    except Exception as error:
        if not workers.claim_failure():
            raise SystemExit(2 if isinstance(error, UserError) else 1) from None
        if not isinstance(error, RuntimeError) or not any(word in str(error) for word in LOST):
            raise
        raise UserError(
            f"Worker {workers.rank} has lost the connection to another worker, which was killed or "
            f"cannot be reached; the checkpoints are whole: the run can be resumed."
        ) from error
