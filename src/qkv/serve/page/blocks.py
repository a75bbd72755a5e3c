"""Tensors on the wire: a JSON header, then little-endian blocks of float16 or float32."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, Literal

import numpy
import torch
from torch import Tensor

Precision = Literal["float16", "float32"]
TYPES: dict[str, str] = {"float16": "<f2", "float32": "<f4"}


def pool_cells(value: Tensor, cells: int) -> Tensor:
    """Mean over neighbouring values of the last dimension, so that at most `cells` are left."""
    width = value.shape[-1] if value.dim() else 1
    if cells <= 0 or width <= cells:
        return value
    lengths = torch.linspace(0, width, cells + 1).round().long().diff()
    columns = value.detach().float().cpu().reshape(-1, width).T.contiguous()
    pooled = torch.segment_reduce(columns, "mean", lengths=lengths, axis=0)
    return pooled.T.reshape(*value.shape[:-1], cells)


def encode_blocks(
    values: Mapping[str, Tensor], about: Mapping[str, Any], precision: Precision = "float16"
) -> bytes:
    """Lay out tensors after a header of `about` and each block's key, shape, offset and range."""
    blocks, parts, offset = [], [], 0
    for key, value in values.items():
        value = value.detach().float().cpu()
        seen = value[torch.isfinite(value)]
        content = _array(value, precision).tobytes()
        blocks.append(
            {
                "key": key,
                "shape": list(value.shape),
                "offset": offset,
                "low": float(seen.min()) if seen.numel() else 0.0,
                "high": float(seen.max()) if seen.numel() else 0.0,
            }
        )
        parts.append(content + b"\0" * (-len(content) % 4))
        offset += len(parts[-1])
    header = json.dumps({**about, "precision": precision, "blocks": blocks}, ensure_ascii=False)
    head = header.encode()
    head += b" " * (-len(head) % 4)
    return struct.pack("<I", len(head)) + head + b"".join(parts)


def _array(value: Tensor, precision: Precision) -> numpy.ndarray[Any, Any]:
    """Convert to the wire's type; numbers too large for float16 become its largest."""
    array = value.numpy()
    if precision == "float16":
        most = numpy.finfo(numpy.float16).max
        array = numpy.where(numpy.isfinite(array), array.clip(-most, most), array)
    return array.astype(TYPES[precision])
