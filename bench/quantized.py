"""What weights in 8 and 4 bits cost and save: `python -m bench.quantized --text T.txt`.

A language model on a CPU in each dtype: perplexity of a text in windows, greedy decoding of one
prompt beside transformers' `generate` in float32, and the memory that loading takes, measured in a
process of its own. "as it is" is what a GGUF file is loaded as without a dtype.
"""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import qkv
from bench.measure import Session, interleaved, parser, run
from bench.perplexity import our_nats, perplexity, read, their_model, windows
from qkv.shelf import find_model

DTYPES = ("fp32", "as it is", "int8", "int4")
PROMPT = 32  # tokens of the text before those that are decoded


def load(path: Path | str, dtype: str) -> qkv.tasks.LanguageModel:
    return qkv.load(path, "cpu", None if dtype == "as it is" else dtype)


def loaded_megabytes(path: Path, dtype: str) -> float:
    """Load a model in a fresh process and return the memory that this takes there."""
    command = [
        sys.executable,
        "-c",
        f"from bench.quantized import *; tell({str(path)!r}, {dtype!r})",
    ]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def tell(path: str, dtype: str) -> None:
    """Print by how many MB this process grows when it loads a model."""
    import qkv.tasks  # whose own memory does not count

    qkv.load, qkv.tasks.load  # noqa: B018
    before = resident_bytes()
    model = load(path, dtype)
    print((resident_bytes() - before) / 1e6)
    del model


def resident_bytes() -> int:
    """Return the memory that this process holds, without files that are mapped."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("RssAnon:")[2].split()[0])


def body(session: Session) -> None:
    """Record a row for each dtype."""
    # Imports transformers, which the process that measures memory does without.
    from bench.infer import our_decoding, their_decoding

    options = session.options
    path = find_model(options.model)
    models = {dtype: load(path, dtype) for dtype in DTYPES}
    floats = models["fp32"]
    tokens = floats.encode(read(options.text))[: options.limit]
    rows = windows(tokens, min(options.window, floats.model.config.max_length))
    quality = {dtype: perplexity(our_nats(models[dtype].model), rows, 1) for dtype in DTYPES}
    prompt = [tokens[:PROMPT]]
    works = {dtype: our_decoding(models[dtype].model, prompt, options.tokens) for dtype in DTYPES}
    works["generate"] = their_decoding(
        their_model(path, session.device), prompt, options.tokens, None
    )
    times = interleaved(works, options.repeats)
    memory = {dtype: loaded_megabytes(path, dtype) for dtype in DTYPES}
    for dtype in DTYPES:
        columns = {
            "perplexity": round(quality[dtype], 3),
            "change, %": round(100 * (quality[dtype] / quality["fp32"] - 1), 2),
            "tokens/s": round(options.tokens / times[dtype], 1),
            "× `generate` in float32": round(times["generate"] / times[dtype], 2),
            "MB": round(memory[dtype]),
            "× float32's": round(memory[dtype] / memory["fp32"], 2),
        }
        name = f"`{Path(str(options.model)).name}`, {dtype}"
        session.record(f"quantized.{dtype.replace(' ', '-')}", name, columns)


def main(arguments: Sequence[str] | None = None) -> Session:
    options = parser("bench.quantized", __doc__)
    options.add_argument("--model", default="smollm2", help="a GGUF file, a folder, or a name")
    options.add_argument("--text", type=Path, required=True, help="plain text; .gz too")
    options.add_argument("--limit", type=int, default=8192, help="the first so many tokens only")
    options.add_argument("--window", type=int, default=512, help="tokens read at a time")
    options.add_argument("--tokens", type=int, default=64, help="tokens to decode")
    options.add_argument("--repeats", type=int, default=5, help="times each side decodes")
    return run(body, options, arguments)


if __name__ == "__main__":
    main()
