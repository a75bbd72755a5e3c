"""Words that mean what comes after them: `python -m bench.meanings --text FILE… --picture OUT`.

Trains an encoder and a decoder of the same size on the same text, then looks at the vector of an
ambiguous word in real sentences. For each sentence of one meaning there is one of the other that
begins with the same words, so that only what comes after can tell them apart.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import qkv
from bench.measure import Session, parser, run
from qkv.config import recipe_from
from qkv.data import read_lines
from qkv.model import Decoder, Encoder
from qkv.text import Tokenizer

THINGS = "(?:the|a|an|my|his|her|our|their|last) (?:\\w+ )?"
SENSES = {
    "left": {
        "went away": r"(?:for|early|already|yesterday|without|soon|after|before|at|when|because"
        r"|last|this|in|by|with|an? \w+ ago|\w+ \w+ ago)\b|[.,!?]",
        "did not take along": r"(?:his|her|my|their|our|me|him|us|them|it|something|everything"
        r"|nothing|the (?:\w+ )?(?:door|window|lights?|water|keys?|engine|radio|box)"
        r"|a (?:message|note|fortune|tip|book))\b",
    },
    "turned": {
        "moved round": r"(?:around|away|back|to|and|left|right)\b|[.,!?]",
        "switched, or refused": r"(?:on|off|down) (?!the street|the road)",
    },
    "missed": {
        "came too late for": rf"(?:{THINGS})?(?:train|bus|flight|plane|chance|boat|deadline"
        r"|appointment|meeting|class|opportunity|connection|show|party|lunch|dinner|game)\b",
        "longed for": r"(?:you|him|her|them|me|Tom|Mary|Boston|home|Australia|us|my family"
        r"|my friends|having|being|talking|working)\b",
    },
}
Pairs = list[tuple[str, str]]  # a sentence of the first meaning, and one of the second


def pairs_of(word: str, lines: list[str]) -> Pairs:
    """Pair sentences of both meanings that have the same words up to the word itself."""
    by_start: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        matches = list(re.finditer(rf"\b{word}\b", line))
        if len(matches) != 1:
            continue
        before, after = line[: matches[0].start()], line[matches[0].end() :]
        meanings = [name for name, rest in SENSES[word].items() if re.match(f" ?(?:{rest})", after)]
        if len(meanings) == 1:
            by_start[before][meanings[0]].append(line)
    pairs: Pairs = []
    first, second = SENSES[word]
    for before in sorted(by_start):
        columns = by_start[before]
        draw = random.Random(0)
        pairs += zip(
            draw.sample(columns[first], len(columns[first])),
            draw.sample(columns[second], len(columns[second])),
            strict=False,
        )
    return pairs


def train(text: list[str], folder: Path, family: str, steps: int) -> Path:
    """Train an encoder or a decoder of 4 layers of 256 that differ only in the mask."""
    out = folder / family
    if (out / "model.safetensors").exists():
        return out
    size = {"d_model": 256, "n_heads": 4, "d_ff": 1024, "max_length": 128, "dropout": 0.1}
    same = {
        **size,
        "positions": "learned",
        "activation": "gelu",
        "norm_position": "pre",
        "attention_dropout": 0.0,
    }
    preset = {"preset": "bert-mini", "n_encoder_layers": 4, "n_segments": 0}
    if family == "decoder":
        preset = {"preset": "gpt2-mini", "n_decoder_layers": 4, "embedding_norm": True}
    recipe = {
        "task": "fill" if family == "encoder" else "generate",
        "data": {"text": text, "documents": "line"},
        "tokenizer": {"vocab_size": 8000},
        "model": {**preset, **same},
        "train": {
            "steps": steps,
            "lr": 1e-3,
            "warmup": 200,
            "batch_tokens": 16_384,
            "valid_every": max(1, steps // 4),
        },
    }
    if family == "decoder":
        recipe["tokenizer"] = {"path": str(folder / "encoder" / "tokenizer.json")}
    qkv.train(recipe_from(recipe), out)
    return out


@torch.inference_mode()
def vectors(model: Encoder | Decoder, tokenizer: Tokenizer, word: str, lines: list[str]) -> Tensor:
    """Return the last layer's vector of the word's last token in each line, (N, D)."""
    rows = []
    for line in lines:
        match = re.search(rf"\b{word}\b", line)
        assert match
        spelt = tokenizer.encode_spans(line)
        last = max(i for i, (start, end) in enumerate(spelt.spans) if end == match.end())
        ids = [model.config.bos_id, *spelt.ids]
        if isinstance(model, Encoder):
            ids.append(model.config.eos_id)
        rows.append(model.hidden(torch.tensor([ids]))[0, last + 1])
    return torch.stack(rows).float()


def accuracy(first: Tensor, second: Tensor) -> float:
    """Return how often a vector is nearer to its own meaning's mean, its pair left out."""
    right = 0
    for index in range(len(first)):
        keep = torch.arange(len(first)) != index
        means = F.normalize(torch.stack([first[keep].mean(0), second[keep].mean(0)]), dim=-1)
        for wanted, vector in enumerate((first[index], second[index])):
            likeness = means @ F.normalize(vector, dim=-1)
            right += 1.0 if likeness[wanted] > likeness[1 - wanted] else 0.0
            right += 0.5 if likeness[wanted] == likeness[1 - wanted] else 0.0
    return right / (2 * len(first))


def draw(told: dict[str, dict[str, tuple[Tensor, Tensor, float]]], path: Path) -> None:
    """Draw one row per word, both models side by side: two principal components."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2 * len(told)), layout="constrained")
    axes = figure.subplots(len(told), 2, squeeze=False)
    for row, (word, models) in zip(axes, told.items(), strict=True):
        for axis, (name, (first, second, share)) in zip(row, models.items(), strict=True):
            both = torch.cat([first, second])
            _, _, directions = torch.pca_lowrank(both, q=2, niter=8)
            for label, some in zip(SENSES[word], (first, second), strict=True):
                flat = ((some - both.mean(0)) @ directions).numpy()
                axis.scatter(flat[:, 0], flat[:, 1], s=16, alpha=0.6, label=label)
            axis.set_title(f"“{word}”, {name}: {100 * share:.0f} % told apart", fontsize=10)
            axis.set_xticks([])
            axis.set_yticks([])
            axis.legend(fontsize=8)
    figure.savefig(path, dpi=110)


def body(session: Session) -> None:
    """Train both models and record how well each tells the meanings of each word apart."""
    options = session.options
    lines = sorted({line for path in options.text for line in read_lines(Path(path))})
    pairs = {word: pairs_of(word, lines) for word in SENSES}
    told: dict[str, dict[str, tuple[Tensor, Tensor, float]]] = defaultdict(dict)
    for family in ("encoder", "decoder"):
        loaded = qkv.load(train(options.text, options.out, family, options.steps), "cpu")
        model, tokenizer = loaded.model.eval(), loaded.tokenizer
        for word in SENSES:
            sides = zip(*pairs[word], strict=True)
            first, second = (vectors(model, tokenizer, word, list(side)) for side in sides)
            told[word][family] = first, second, accuracy(first, second)
    for word, models in told.items():
        shares = {f"{family}, %": round(100 * m[2], 1) for family, m in models.items()}
        columns = {"meanings": " / ".join(SENSES[word]), "sentences": 2 * len(pairs[word])}
        session.record(f"quality.meanings.{word}", word, {**columns, **shares})
    options.picture.parent.mkdir(parents=True, exist_ok=True)
    draw(told, options.picture)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser("bench.meanings", __doc__)
    options.add_argument("--text", nargs="+", required=True, help="a sentence per line; .gz too")
    options.add_argument("--out", type=Path, default=Path("runs/meanings"))
    options.add_argument("--steps", type=int, default=4000)
    options.add_argument("--picture", type=Path, default=Path("docs/figures/meanings.png"))
    run(body, options, arguments)


if __name__ == "__main__":
    main()
