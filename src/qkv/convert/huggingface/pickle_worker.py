"""Write a pickled state dict as safetensors within bounds; run as a script, never imported.

A pickle is a program. `torch.load(weights_only=True)` lets it build tensors and nothing else, but
not how long it runs or how much it allocates. Reads one JSON object from standard input. Exits with
a code of the request: `too_large`; or `broken`, with the reason on standard error.
"""

import json
import pickle
import re
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from qkv.child_process import limit_file_size, limit_memory, stop

# Floats are weights; integers and truth values are buffers, such as positions
KINDS = (
    *(torch.float64, torch.float32, torch.bfloat16, torch.float16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
CONTIGUOUS = torch.contiguous_format
CALLS = re.compile(r"(?:Unsupported global: GLOBAL|Trying to load unsupported GLOBAL) (\S+)")


class BrokenError(Exception):
    """A file that holds no state dict; the message says why."""


def load(path: Path) -> Any:
    """Read a file of torch.save's; those of old have no archive that could be mapped."""
    try:
        with path.open("rb") as file:
            is_archive = file.read(2) == b"PK"
        return torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive)
    except pickle.UnpicklingError as error:
        called = CALLS.search(str(error))
        if called:
            reason = f"it asks for {called[1]}, which has no place among weights"
            raise BrokenError(reason) from error
        raise BrokenError("it is truncated, or does more than storing tensors") from error
    except MemoryError:
        raise
    except RuntimeError as error:
        if "allocate" in str(error):
            raise MemoryError from error
        raise BrokenError("it is truncated or damaged") from error
    except Exception as error:  # a pickle may fail in any way
        raise BrokenError("it is truncated or damaged") from error


def state_dict(content: Any) -> dict[str, Tensor]:
    """The tensors by their names, if that is what was pickled."""
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if not isinstance(content, Mapping):
        raise BrokenError(f"it holds a {type(content).__name__} and no tensors by their names")
    for name, tensor in content.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            kind = type(tensor).__name__
            raise BrokenError(f"{str(name)[:80]!r} in it is a {kind} and no tensor")
        if tensor.dtype not in KINDS or tensor.layout != torch.strided or tensor.is_quantized:
            odd = tensor.layout if tensor.layout != torch.strided else tensor.dtype
            kind = str(odd).removeprefix("torch.")
            raise BrokenError(f"{name[:80]} is a tensor of {kind}, which is no kind of weights")
    return dict(content)


def rewrite(source: Path, target: Path, n_bytes: int) -> None:
    """Write the tensors of one file as safetensors of at most so many bytes."""
    tensors = state_dict(load(source))
    if sum(tensor.numel() * tensor.itemsize for tensor in tensors.values()) > n_bytes:
        raise MemoryError
    # Tied tensors share memory, which the format does not know.
    apart = {name: x.detach().clone(memory_format=CONTIGUOUS) for name, x in tensors.items()}
    save_file(apart, target)


def main() -> None:
    """Convert the files of the request, one by one."""
    request = json.load(sys.stdin)
    warnings.simplefilter("ignore")  # standard error has the reason alone
    limit_memory(request["n_bytes"], more=True)
    limit_file_size(request["n_bytes"])
    source = Path()
    try:
        for source, target in ((Path(one), Path(other)) for one, other in request["files"]):
            rewrite(source, target, request["n_bytes"] // 2)
    except MemoryError:
        stop(source.name, request["too_large"])
    except RuntimeError as error:
        if "allocate" not in str(error):
            raise
        stop(source.name, request["too_large"])
    except BrokenError as error:
        stop(f"{source.name}\n{error}", request["broken"])


if __name__ == "__main__":
    main()
