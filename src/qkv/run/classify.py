"""Classification: labelled texts in, an encoder with a head of labels out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from qkv.convert import open_model
from qkv.data import IGNORE, Sequences
from qkv.data.labelled import Label, Labelled, read_labelled, read_texts
from qkv.data.splits import Example, Splits, draw_examples, read_splits
from qkv.errors import UserError
from qkv.evaluation import Score
from qkv.evaluation.calibration import Calibration, calibration
from qkv.evaluation.classification import ClassReport, classification_report, multilabel_report
from qkv.evaluation.regression import regression_scores
from qkv.model import Encoder
from qkv.run.teach import TEXTS, opinions
from qkv.run.understand import Labelling
from qkv.tasks.classify import Classes, Classification, Classifier
from qkv.tasks.folder import Where, load_config, load_section
from qkv.tasks.texts import Progress
from qkv.text import Tokenizer
from qkv.training import Objective, entropy, many_classes, number, one_class
from qkv.training.loop import Scores


class Classifying(Labelling[Labelled, Classifier]):
    """The job of `task = "classify"`."""

    def read(self) -> Splits[Labelled]:
        """Texts with their labels; `n_examples` of those to train on."""
        recipe = self.plan.recipe
        data, kind = recipe.data, recipe.classify.kind

        def read(paths: Sequence[str], name: str) -> list[Labelled]:
            return read_labelled(paths, kind, data.label_field, data.text_fields, name=name)

        splits = read_splits(
            data, recipe.train.seed, read, lambda one: "\t".join(one.texts), labels_of
        )
        by_class = (lambda one: one.label) if kind == "class" else (lambda one: None)
        train = draw_examples(splits.train, data.n_examples, recipe.train.seed, by_class)
        self.classes = self._classes(train, splits)
        train = train + self._unlabelled(Splits(train, splits.valid, splits.test))
        if self.classes.n_texts == 2 and not data.text_fields:
            self.plan.say(
                "each example is a pair of texts, for it has two fields beside the label; name one "
                "as text_fields under [data] to read it alone"
            )
        return Splits(train, splits.valid, splits.test)

    def _unlabelled(self, used: Splits[Labelled]) -> list[Labelled]:
        """Texts that only teachers label, but for those that are used as examples."""
        data, teacher = self.plan.recipe.data, self.plan.recipe.teacher
        if not teacher.text:
            return []
        texts = read_texts(teacher.text, data.text_fields, data.label_field)
        if len(texts[0]) != self.classes.n_texts:
            raise UserError(
                f"teacher.text: {teacher.text[0]} holds {TEXTS[len(texts[0])]}, but the examples "
                f"are {TEXTS[self.classes.n_texts]}; give both the same columns, or name "
                f"text_fields under [data]."
            )
        known = {one.texts for one in [*used.train, *used.valid, *used.test]}
        found = [Labelled(one, None) for one in dict.fromkeys(texts) if one not in known]
        self.plan.say(f"teacher: {len(found):,} texts without labels are trained on too")
        return found

    def _classes(self, train: list[Labelled], splits: Splits[Labelled]) -> Classes:
        settings = self.plan.recipe.classify
        more: dict[str, Any] = {
            "kind": settings.kind,
            "threshold": settings.threshold,
            "overlap": settings.overlap,
            "n_texts": len(train[0].texts),
            "frame": self._frame(),
        }
        if settings.kind == "number":
            values = np.array([one.label for one in train], np.float64)
            deviation = float(values.std()) or 1.0
            return Classes(("value",), mean=float(values.mean()), deviation=deviation, **more)
        used = Splits(train, splits.valid, splits.test)
        labels = label_names(used, labels_of, least=2 if settings.kind == "class" else 1)
        return Classes(labels, **more)

    def _frame(self) -> tuple[tuple[int, ...], ...]:
        """What the classifier that the run begins from has around its texts, where that is unusual.

        Its head has learnt to look at the token that comes last.
        """
        if not self.plan.recipe.train.start_from:
            return ()
        start = open_model(self.plan.recipe.train.start_from)
        _, config, _ = load_config(start)
        return load_section(start, "classify", Classes).frame if config.causal else ()

    def texts(self) -> Iterable[str]:
        """All texts that are trained on."""
        return (text for one in self.splits.train for text in one.texts)

    def head(self) -> dict[str, Any]:
        """A head on the whole text."""
        return {"head": "sequence", "n_labels": len(self.classes.labels)}

    def build(self, model: Encoder, tokenizer: Tokenizer) -> Classifier:
        """The object of the task around a model."""
        return Classifier(model, tokenizer, self.classes)

    def lay_out(self, examples: Sequence[Labelled]) -> Sequences:
        """Each window of a text with the text's label."""
        framed, owners = self.verb.frame([one.texts for one in examples])
        sequences = Sequences.of(framed, self._targets(examples)[owners])
        # What is validated with is compared with its labels alone.
        if not self.plan.recipe.teacher.models or examples is not self.splits.train:
            return sequences
        said = opinions(self.plan, [one.texts for one in examples], self.classes.labels)
        return dataclasses.replace(sequences, opinions=said[owners])

    def _targets(self, examples: Sequence[Labelled]) -> npt.NDArray[Any]:
        classes = self.classes
        if classes.kind == "number":
            values = np.array([one.label for one in examples], np.float64)
            return ((values - classes.mean) / classes.deviation).astype(np.float32)
        place: dict[Label, int] = {label: index for index, label in enumerate(classes.labels)}
        if classes.kind == "class":
            place[None] = IGNORE
            return np.array([place[one.label] for one in examples], np.int64)
        wanted = np.zeros((len(examples), len(place)), np.float32)
        for row, one in enumerate(examples):
            wanted[row, [place[label] for label in labels_of(one)]] = 1
        return wanted

    def objective_of(self, train: Sequences) -> Objective:
        """Softmax over one, a yes or no to each, or a distance."""
        if self.classes.kind == "number":
            return number
        found = self._weights(train)
        weights = None if found is None else torch.from_numpy(found)
        if self.classes.kind == "class":
            recipe = self.plan.recipe
            return one_class(weights, recipe.train.consistency, recipe.teacher)
        return many_classes(weights)

    def _weights(self, train: Sequences) -> npt.NDArray[np.float32] | None:
        if self.plan.recipe.classify.weights == "none":
            return None
        return balanced(_known(train), len(self.classes.labels))

    def baseline(self, train: Sequences) -> float:
        """The loss of one who always gives each label the share that it has."""
        if self.classes.kind == "number":
            return float(np.var(train.labels))
        found = self._weights(train)
        weights = np.ones(len(self.classes.labels)) if found is None else found
        if self.classes.kind == "class":
            known = _known(train)
            return least_loss(np.bincount(known) * weights / len(known))
        share = train.labels.mean(0)
        outcomes = np.stack([weights * share, 1 - share], axis=1)  # (C, 2)
        return float(np.mean([least_loss(one) for one in outcomes]))

    def measure(self, verb: Classifier, examples: Sequence[Labelled]) -> list[Score]:
        """Accuracy, F1 and how far probabilities can be trusted; or correlations."""
        return classifier_scores(verb, examples)

    def figures(self, scores: Sequence[Score]) -> Scores:
        """The first score, by which the best weights are chosen, and F1."""
        names = {"accuracy": "accuracy", "macro F1": "f1", "Pearson": "correlation"}
        return {names[score.name]: score.value for score in scores if score.name in names}

    def keeps_head(self, folder: Where) -> bool:
        """Whether a folder's head says these very labels."""
        known = load_section(folder, "classify", Classes)
        same = (known.kind, known.labels) == (self.classes.kind, self.classes.labels)
        return super().keeps_head(folder) and same

    def keep(self) -> None:
        """Make the run's folder a model folder of the weights as they are now."""
        self.verb.save(self.plan.folder)

    def load(self) -> Classifier:
        """Read the run's folder back."""
        return Classifier.load(self.plan.folder, self.plan.device)


def _known(train: Sequences) -> npt.NDArray[Any]:
    """The labels of those sequences that have one."""
    return train.labels if train.labels.ndim == 2 else train.labels[train.labels != IGNORE]


def labels_of(one: Labelled) -> tuple[str, ...]:
    """An example's labels, one or many."""
    if isinstance(one.label, float | None):
        return ()
    return (one.label,) if isinstance(one.label, str) else one.label


def label_names(
    splits: Splits[Example], labels_of: Callable[[Example], Iterable[str]], least: int = 2
) -> tuple[str, ...]:
    """The labels that can be learnt, in order: those of the training examples."""
    labels = sorted({label for one in splits.train for label in labels_of(one)})
    if len(labels) < least:
        only = f"only the label {labels[0]!r}" if labels else "no label at all"
        raise UserError(
            f"data: the training examples have {only}; give some with other labels, to tell "
            f"them apart."
        )
    for name, split in (("validation", splits.valid), ("test", splits.test)):
        unknown = {label for one in split for label in labels_of(one)} - set(labels)
        if unknown:
            raise UserError(
                f"data: the {name} examples have the label {min(unknown)!r}, which no "
                f"training example has; correct it, or train on some."
            )
    return tuple(labels)


def balanced(labels: npt.NDArray[Any], n_labels: int) -> npt.NDArray[np.float32]:
    """Weights in inverse proportion to frequency: of classes, or of each one's yes to its no."""
    if labels.ndim == 2:
        yes = labels.sum(0)
        return np.asarray((len(labels) - yes) / np.maximum(yes, 1), np.float32)
    counts = np.bincount(labels, minlength=n_labels)
    return np.asarray(len(labels) / (n_labels * np.maximum(counts, 1)), np.float32)


def least_loss(weights: npt.NDArray[Any]) -> float:
    """The least cross-entropy that one answer for all has, where outcomes have these weights."""
    return entropy(weights) * float(weights.sum())


@dataclass(frozen=True)
class Verdict:
    """What a classifier said of labelled texts, and how good that is."""

    found: list[Classification]
    scores: list[Score]
    report: ClassReport | None = None  # of classes
    trust: Calibration | None = None  # of one class of several


def classifier_scores(verb: Classifier, examples: Sequence[Labelled]) -> list[Score]:
    """How well a classifier does on labelled texts."""
    return judge(verb, examples).scores


def judge(
    verb: Classifier, examples: Sequence[Labelled], progress: Progress | None = None
) -> Verdict:
    """Compare what a classifier says with the labels."""
    classes = verb.classes
    if classes.kind != "number":
        check_known([label for one in examples for label in labels_of(one)], classes.labels)
    found = verb.classify([one.texts for one in examples], progress=progress)
    if classes.kind == "number":
        gold = np.array([one.label for one in examples], np.float64)
        return Verdict(found, regression_scores([one.value or 0.0 for one in found], gold))
    if classes.kind == "classes":
        report = multilabel_report(
            [one.labels for one in found], [labels_of(one) for one in examples], classes.labels
        )
        return Verdict(found, report.scores(), report)
    return judge_one_class(found, [labels_of(one)[0] for one in examples], classes.labels)


def judge_one_class(
    found: list[Classification], right: Sequence[str], labels: Sequence[str]
) -> Verdict:
    """Compare the classes that were found with the right ones, and trust with truth."""
    report = classification_report([one.label for one in found], right, labels)
    probabilities = np.array([list(one.probabilities.values()) for one in found])
    trust = calibration(probabilities, np.array(list(map(labels.index, right))))
    return Verdict(found, [*report.scores(), *trust.scores()], report, trust)


def check_known(given: Iterable[str], known: Sequence[str]) -> None:
    """Refuse to judge by labels that the model does not know."""
    unknown = set(given) - set(known)
    if unknown:
        raise UserError(
            f"The examples have the label {min(unknown)!r}, which the model does not know; its "
            f"labels are {', '.join(known)}."
        )
