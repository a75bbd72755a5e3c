"""What `qkv evaluate` can be told."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[str | None, typer.Option(help="Model folder, GGUF file or pulled name.")]
Source = Annotated[Path | None, typer.Option(help="Sources to translate.")]
Target = Annotated[Path | None, typer.Option(help="References, a line a sentence.")]
Hypotheses = Annotated[
    Path | None, typer.Option(help="Score these translations instead of a model's.")
]
Beams = Annotated[int | None, typer.Option(help="Beam width; 1 is greedy.")]
Tokenize = Annotated[
    str, typer.Option(help="sacreBLEU's tokenizer; auto: zh for Chinese, else 13a.")
]
Output = Annotated[
    Path | None, typer.Option(help="Also write the translations, labels or answers here.")
]
Text = Annotated[
    list[Path] | None, typer.Option(help="Text to measure a language model on; repeatable.")
]
Records = Annotated[Path | None, typer.Option(help="Instructions, to be answered word for word.")]
Examples = Annotated[
    Path | None,
    typer.Option(
        help="Examples as for training, with their labels, tags or answers; for a language model, "
        "labelled ones (.jsonl, .tsv) to choose answers for."
    ),
]
LabelField = Annotated[
    str | None, typer.Option(help="The label's column or key there, if not as in training.")
]
TextField = Annotated[
    list[str] | None, typer.Option(help="The text's column or key there; twice for a pair.")
]
Picture = Annotated[
    Path | None,
    typer.Option(help="Draw a classifier's confusions and reliability into this folder."),
]
Pool = Annotated[Path | None, typer.Option(help="Where solved examples come from.")]
Shots = Annotated[int, typer.Option(help="Solved examples before each question.")]
Template = Annotated[str, typer.Option(help="The question, like 'Review: {text} Sentiment:'.")]
Answer = Annotated[str, typer.Option(help="The answer after it.")]
Choice = Annotated[list[str] | None, typer.Option(help="A possible answer; repeatable.")]
Normalize = Annotated[
    str, typer.Option(help="Compare options by log P as it is (none), by tokens or bytes.")
]
Seed = Annotated[int, typer.Option(help="Decides which examples are drawn.")]
Json = Annotated[bool, typer.Option("--json", help="Scores as a JSON object.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.")]
