"""`qkv convert`: other people's checkpoints to ours, and ours to theirs."""

from __future__ import annotations

import typer

from qkv.errors import UserError


def convert(
    source: str = typer.Argument(
        help="A model: a folder of qkv's or Hugging Face's, a GGUF file, or a name."
    ),
    target: str = typer.Argument(help="The folder to write; it must not be there yet."),
    to: str = typer.Option("qkv", "--to", help="qkv, huggingface or ctranslate2."),
    dtype: str = typer.Option("", help="Store weights as fp32, bf16, int8 or int4 (qkv only)."),
    from_pickle: bool = typer.Option(
        False,
        "--from-pickle",
        help="Read pytorch_model.bin: its tensors and no code, in a bounded process.",
    ),
) -> None:
    """Convert a model to another format or number type.

    Weights, tokenizer, special tokens, decoding defaults and chat template.

    \b
    Example: qkv convert runs/demo demo-hf --to huggingface
    Example: qkv convert runs/demo demo-int8 --dtype int8
    Example: qkv convert old-model new-model --from-pickle
    """
    from qkv.convert import FORMATS
    from qkv.convert import convert as write

    if to not in FORMATS:
        raise UserError(f"--to is {to!r}, but must be one of: {', '.join(FORMATS)}.")
    folder = write(source, target, to, dtype or None, from_pickle)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{target}: {size / 1e6:,.1f} MB for {to}.")
