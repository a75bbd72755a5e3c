"""Tagging: sentences of labelled words in, an encoder with a head for each word out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from qkv.data import IGNORE, Sequences
from qkv.data.conll import Sentence, read_conll
from qkv.data.splits import Splits, draw_examples, read_splits
from qkv.errors import UserError
from qkv.evaluation import Score
from qkv.evaluation.classification import ClassReport, classification_report
from qkv.evaluation.entities import EntityReport, entity_report
from qkv.model import Encoder
from qkv.run.understand import Labelling
from qkv.tasks.folder import Where, load_section
from qkv.tasks.tag import Tagger, Tags
from qkv.text import Tokenizer
from qkv.text.schemes import OUTSIDE, PREFIXES, Scheme, guess_scheme, label_set
from qkv.text.spans import join_words
from qkv.training import Objective, entropy, token_labels
from qkv.training.loop import Scores


class TaggingJob(Labelling[Sentence, Tagger]):
    """The job of `task = "tag"`."""

    def read(self) -> Splits[Sentence]:
        """Sentences with a label for each word; `n_examples` of those to train on."""
        recipe = self.plan.recipe
        data, settings, seed = recipe.data, recipe.tag, recipe.train.seed

        def read(paths: Sequence[str], name: str) -> list[Sentence]:
            return read_conll(paths, settings.word_column, settings.label_column, name=name)

        splits = read_splits(data, seed, read, lambda one: " ".join(one.words))
        train = draw_examples(splits.train, data.n_examples, seed, lambda one: None)
        self.tags = self._tags(train)
        self._look_for_unknown("validation", splits.valid)
        self._look_for_unknown("test", splits.test)
        return Splits(train, splits.valid, splits.test)

    def _tags(self, train: Sequence[Sentence]) -> Tags:
        settings = self.plan.recipe.tag
        written = [one.labels for one in train]
        scheme = _scheme(settings.scheme, written)
        if settings.scheme == "auto" and scheme is None:
            self._look_for_entities({label for labels in written for label in labels})
        try:
            labels = label_set(written, scheme)
        except ValueError as error:
            raise UserError(
                f"tag.scheme: {error}; correct the label, or leave scheme = 'auto'."
            ) from error
        if len(labels) < 2:
            raise UserError(
                f"data: the training examples have only the label {', '.join(labels)!r}; there "
                f"must be two or more to tell apart."
            )
        return Tags(tuple(labels), scheme or "none", settings.overlap)

    def _look_for_entities(self, labels: set[str]) -> None:
        """One label that is mistyped should not turn entities into labels without a word."""
        odd = sorted(label for label in labels if guess_scheme([[label]]) is None)
        if len(odd) < len(labels - {OUTSIDE}):
            self.plan.say(
                f"the label {odd[0]} spells no entity as others do, so that labels are learnt and "
                f"scored one by one; if it is a mistake, correct it"
            )

    def _look_for_unknown(self, name: str, split: Sequence[Sentence]) -> None:
        """Labels that are never learnt can be counted as missed, if they are labels at all."""
        unknown = sorted({label for one in split for label in one.labels} - set(self.tags.labels))
        for label in unknown:
            if self.tags.scheme != "none" and guess_scheme([[label]]) is None:
                raise UserError(
                    f"data: the {name} examples have the label {label!r}, but those of training "
                    f"are O or have a prefix and a type like B-person; correct the label."
                )
        if split and {label for one in split for label in one.labels} <= set(unknown):
            raise UserError(
                f"data: no training example has any of the labels {', '.join(unknown)} of the "
                f"{name} examples; give both the same labels."
            )
        if unknown:
            self.plan.say(
                f"no training example has the label {', '.join(unknown)} of the {name} examples: "
                f"it will never be found"
            )

    def texts(self) -> Iterable[str]:
        """All sentences that are trained on."""
        return (join_words(one.words)[0] for one in self.splits.train)

    def head(self) -> dict[str, Any]:
        """A head on each token."""
        return {"head": "token", "n_labels": len(self.tags.labels)}

    def build(self, model: Encoder, tokenizer: Tokenizer) -> Tagger:
        """The object of the task around a model."""
        return Tagger(model, tokenizer, self.tags)

    def lay_out(self, examples: Sequence[Sentence]) -> Sequences:
        """Each word's label at its first token, in the window that decides it; no other counts."""
        index = {label: number for number, label in enumerate(self.tags.labels)}
        parts = self.verb.frame([one.words for one in examples])
        labels = [np.full(len(part.framed.tokens), IGNORE, np.int64) for part in parts]
        for part, row in zip(parts, labels, strict=True):
            gold = examples[part.sentence].labels
            row[part.places] = [index.get(gold[word], IGNORE) for word in part.words]
        framed = [part.framed for part in parts]
        return Sequences.of(framed, np.concatenate(labels), by_token=True)

    def objective_of(self, train: Sequences) -> Objective:
        """A label for each word."""
        return token_labels(self.plan.recipe.train.consistency)

    def baseline(self, train: Sequences) -> float:
        """The loss of one who always gives each label the share that it has."""
        return entropy(np.bincount(train.labels[train.labels != IGNORE]))

    def measure(self, verb: Tagger, examples: Sequence[Sentence]) -> list[Score]:
        """F1 of entities and accuracy of labels; or F1 of labels, where these spell no entities."""
        return tagger_scores(verb, examples)

    def figures(self, scores: Sequence[Score]) -> Scores:
        """What the best weights can be chosen by."""
        names = {
            "entity F1": "f1",
            "token accuracy": "accuracy",
            "macro F1": "f1",
            "accuracy": "accuracy",
        }
        return {names[score.name]: score.value for score in scores if score.name in names}

    def keeps_head(self, folder: Where) -> bool:
        """Whether a folder's head says these very labels."""
        known = load_section(folder, "tag", Tags)
        return super().keeps_head(folder) and known.labels == self.tags.labels

    def keep(self) -> None:
        """Make the run's folder a model folder of the weights as they are now."""
        self.verb.save(self.plan.folder)

    def load(self) -> Tagger:
        """Read the run's folder back."""
        return Tagger.load(self.plan.folder, self.plan.device)


def _scheme(setting: str, written: Sequence[Sequence[str]]) -> Scheme | None:
    """The scheme that is told, or that the labels seem to follow."""
    if setting == "auto":
        return guess_scheme(written)
    return next((scheme for scheme in PREFIXES if scheme == setting), None)


def tagger_report(verb: Tagger, sentences: Sequence[Sentence]) -> EntityReport | ClassReport:
    """What a tagger finds in labelled sentences, type by type; or label by label, without types."""
    tagged = verb.tag([tuple(one.words) for one in sentences])
    found, gold = [one.labels for one in tagged], [one.labels for one in sentences]
    if verb.scheme is not None:
        return entity_report(found, gold)
    ours, theirs = ([label for labels in side for label in labels] for side in (found, gold))
    return classification_report(ours, theirs, sorted({*ours, *theirs}))


def tagger_scores(verb: Tagger, sentences: Sequence[Sentence]) -> list[Score]:
    """How well a tagger does on labelled sentences."""
    return tagger_report(verb, sentences).scores()
