"""What helps a translator with little data: `python -m bench.small_corpora --data path/to/data`.

Trains a shipped recipe on small corpora (folders under --data), once for each variant and seed, and
scores the validation files; --test scores the test files too, where there are some. "student" is a
model of half the layers, "distilled" the same taught by a baseline that is trained first, and
"backtranslated" a baseline that also learns from the English side of other corpora.

python -m bench.small_corpora --data DIR --corpora tatoeba --variants baseline no_r_drop --seeds 2
"""

from __future__ import annotations

import json
import multiprocessing
from argparse import Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

import qkv
from bench.measure import RECIPES, Session, parser, run, score, spread, trained
from qkv.config import load_recipe
from qkv.run.train import Run

HALF = ("model.n_encoder_layers=2", "model.n_decoder_layers=2")
VARIANTS: dict[str, tuple[str, ...]] = {
    "baseline": (),
    "no_r_drop": ("train.consistency=0",),
    "no_r_drop_dropout_0.4": ("train.consistency=0", "model.dropout=0.4"),
    "dropout_0.2": ("model.dropout=0.2",),
    "dropout_0.4": ("model.dropout=0.4",),
    "bpe_dropout": ("data.bpe_dropout=0.1",),
    "width_256": ("model.d_model=256", "model.n_heads=4"),
    "no_average": ("train.average=1",),
    "student": HALF,
    "distilled": HALF,
    "backtranslated": (),
}
USUAL = tuple(VARIANTS)[:8]


@dataclass(frozen=True)
class Corpus:
    """A folder of pairs, the recipe that it is trained by, and further target text."""

    folder: str
    recipe: str
    source: str
    target: str
    test: str = ""
    """Stem of the test files."""
    more: tuple[str, ...] = ()
    """Files of target text without sources."""


CORPORA = {
    "multi30k": Corpus("multi30k", "multi30k", "en", "de", "test2016"),
    "tatoeba": Corpus(
        "tatoeba_en_zh",
        "tatoeba_zh_en",
        "zh",
        "en",
        "test",
        ("tatoeba_en_de/train.en.gz", "tatoeba_en_fr/train.en.gz"),
    ),
    "captions": Corpus("captions_en_zh", "tatoeba_zh_en", "zh", "en"),
}


@dataclass(frozen=True)
class Trial:
    """One run: a corpus, a variant and a seed, with what was asked for on the command line."""

    corpus: str
    variant: str
    seed: int
    options: Namespace

    @property
    def folder(self) -> Path:
        """The run folder."""
        return Path(self.options.out) / f"{self.corpus}-{self.variant}-{self.seed}"

    @property
    def settings(self) -> list[str]:
        """The settings of its recipe."""
        corpus, options = CORPORA[self.corpus], self.options
        folder = options.data / corpus.folder
        files = {"": "train.{}.gz", "valid_": "valid.{}"}
        if options.test and corpus.test:
            files["test_"] = f"{corpus.test}.{{}}"
        given = [
            f"data.{prefix}{side}={folder / name.format(language)}"
            for prefix, name in files.items()
            for side, language in (("source", corpus.source), ("target", corpus.target))
        ]
        given += [f"train.seed={self.seed}", f"train.device={options.device}"]
        given += ["train.checkpoint_every=1000000", "train.tensorboard=false"]
        given += [f"train.steps={options.steps}"] if options.steps else []
        given += [f"train.seconds={options.seconds}"] if options.seconds else []
        return [*given, *options.set, *VARIANTS[self.variant]]


def try_out(trial: Trial) -> dict[str, float]:
    """Train a trial, and return its scores and how long it took."""
    finished = _train(trial)
    found = {
        split: round(score(finished, split, "BLEU"), 2)
        for split in ("valid", "test")
        if split in finished.scores
    }
    found["seconds"] = round(finished.state.seconds, 1)
    named = {"corpus": trial.corpus, "variant": trial.variant, "seed": trial.seed}
    print(json.dumps({**named, **found}), flush=True)
    return found


def _train(trial: Trial) -> Run:
    corpus, quiet = CORPORA[trial.corpus], Console(quiet=True)
    recipe = load_recipe(RECIPES / f"{corpus.recipe}.toml", trial.settings)
    if trial.variant == "backtranslated":
        text = [trial.options.data / name for name in corpus.more]
        return qkv.backtranslate(recipe, text, out=trial.folder, resume=True, console=quiet)
    if trial.variant == "distilled":
        plain = Trial(trial.corpus, "baseline", trial.seed, trial.options)
        teacher = trial.folder.with_name(f"{trial.folder.name}-teacher")
        trained(corpus.recipe, plain.settings, teacher)
        return qkv.distill(str(teacher), recipe, trial.folder, resume=True, console=quiet)
    return trained(corpus.recipe, trial.settings, trial.folder)


def trials(options: Namespace) -> Iterator[Trial]:
    """Yield what to run; a corpus without further text is not translated back."""
    for corpus in options.corpora:
        for variant in options.variants:
            if variant != "backtranslated" or CORPORA[corpus].more:
                yield from (Trial(corpus, variant, n, options) for n in range(options.seeds))


def body(session: Session) -> None:
    """Run all trials, several at a time where asked for, and record each variant's BLEU."""
    options = session.options
    wanted = list(trials(options))
    if options.parallel > 1:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(options.parallel, mp_context=context) as pool:
            results = list(pool.map(try_out, wanted))
    else:
        results = list(map(try_out, wanted))
    by_row: dict[tuple[str, str], list[dict[str, float]]] = {}
    for trial, result in zip(wanted, results, strict=True):
        by_row.setdefault((trial.corpus, trial.variant), []).append(result)
    for (corpus, variant), found in by_row.items():
        figures = {
            name: spread([result[name] for result in found])
            for name in ("valid", "test", *([] if options.parallel > 1 else ["seconds"]))
            if name in found[0]
        }
        session.record(f"quality.small.{corpus}.{variant}", f"{corpus}, {variant}", figures, "BLEU")


def main(arguments: Sequence[str] | None = None) -> Session:
    """Run the command."""
    options = parser("bench.small_corpora", __doc__)
    options.add_argument("--data", type=Path, required=True, help="folder of the corpora's folders")
    options.add_argument("--corpora", nargs="+", choices=CORPORA, default=list(CORPORA))
    options.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(USUAL))
    options.add_argument("--seeds", type=int, default=2, help="runs of each variant")
    options.add_argument("--steps", type=int, default=0, help="instead of the recipe's")
    options.add_argument("--seconds", type=float, default=0.0, help="limit of training time")
    options.add_argument("--parallel", type=int, default=1, help="runs at a time")
    options.add_argument("--test", action="store_true", help="score the test files too")
    options.add_argument("--set", nargs="+", default=[], help="section.key=value, for all runs")
    options.add_argument("--out", type=Path, default=Path("runs/small_corpora"))
    return run(body, options, arguments)


if __name__ == "__main__":
    main()
