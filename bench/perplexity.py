"""Perplexity by qkv and by transformers: `python -m bench.perplexity --model M.gguf --text T.txt`.

Both get the same weights in float32 (each side dequantises those of a GGUF file for itself), the
same tokens and the same windows, one after another without overlap. What is compared is thus how
the file is read and what is computed from it: both should be the same.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import qkv
from bench.measure import Session, parser, run
from qkv.errors import UserError
from qkv.shelf import find_model
from qkv.tasks.likelihood import token_log_probabilities

Rows = list[list[int]]
Nats = Callable[[Rows], float]  # −ln P of all tokens of some rows but the first of each


def windows(tokens: list[int], size: int) -> Rows:
    """Cut tokens into windows; a last one of a single token would score nothing."""
    rows = [tokens[start : start + size] for start in range(0, len(tokens), size)]
    return [row for row in rows if len(row) > 1]


def batches(rows: Rows, batch: int) -> Iterator[Rows]:
    """Yield rows of one length, so that nothing is padded."""
    whole = [row for row in rows if len(row) == len(rows[0])]
    yield from (whole[start : start + batch] for start in range(0, len(whole), batch))
    if len(whole) < len(rows):
        yield rows[len(whole) :]


def our_nats(model: Any) -> Nats:
    def nats(rows: Rows) -> float:
        scored = token_log_probabilities(model, rows)
        return -math.fsum(value for row in scored for value in row)

    return nats


def their_nats(model: Any) -> Nats:
    @torch.inference_mode()
    def nats(rows: Rows) -> float:
        tokens = torch.tensor(rows, device=model.device)
        logits = model(input_ids=tokens, use_cache=False).logits[:, :-1].float()
        losses = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        return float(losses.double().sum())

    return nats


def perplexity(nats: Nats, rows: Rows, batch: int) -> float:
    total = math.fsum(nats(some) for some in batches(rows, batch))
    return math.exp(total / sum(len(row) - 1 for row in rows))


def their_model(path: Path, device: torch.device) -> Any:
    """Load a folder or a GGUF file with transformers, in float32."""
    from transformers import AutoModelForCausalLM, logging

    logging.disable_progress_bar()
    folder, file = (path.parent, path.name) if path.suffix == ".gguf" else (path, None)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    return model.to(device).eval()


def read(path: Path) -> str:
    """Return a text as it is, with all of its newlines."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            return str(file.read())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def body(session: Session) -> None:
    """Record both perplexities of one text."""
    options, device = session.options, session.device
    path = find_model(options.model)
    speaker = qkv.load(path, "cpu", "fp32")
    tokens = speaker.encode(read(options.text))[: options.limit]
    if len(tokens) < 2:
        raise UserError(f"{options.text} holds {len(tokens)} tokens, of which none can be scored.")
    rows = windows(tokens, min(options.window, speaker.model.config.max_length))
    ours = perplexity(our_nats(speaker.model.float().to(device)), rows, options.batch)
    theirs = perplexity(their_nats(their_model(path, device)), rows, options.batch)
    name = Path(str(options.model)).name
    columns = {
        "tokens": len(tokens),
        "qkv": round(ours, 6),
        "transformers, same dequantised weights": round(theirs, 6),
    }
    session.record(f"quality.perplexity.{name}", f"`{name}`", columns, "perplexity")


def main(arguments: Sequence[str] | None = None) -> Session:
    options = parser("bench.perplexity", __doc__)
    options.add_argument("--model", default="smollm2", help="a GGUF file, a folder, or a name")
    options.add_argument("--text", type=Path, required=True, help="plain text; .gz too")
    options.add_argument("--limit", type=int, help="the first so many tokens only")
    options.add_argument("--window", type=int, default=1024, help="tokens read at a time")
    options.add_argument("--batch", type=int, default=8, help="windows in one pass")
    return run(body, options, arguments)


if __name__ == "__main__":
    main()
