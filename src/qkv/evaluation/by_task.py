"""`evaluate`: a model of any task and examples in, its scores and what stands behind them out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, Unpack, overload

import numpy as np

from qkv.batching import batches
from qkv.config import MaskConfig, Recipe, recipe_from
from qkv.data import (
    Labelled,
    LabelledImage,
    MaskedItems,
    Masker,
    Pair,
    Preference,
    PreferenceItems,
    Question,
    Sentence,
    Specials,
    Tokens,
    encode_conversations,
    hold_preferences,
    read_conversations,
    read_images,
    read_labelled,
    read_pairs,
    read_preferences,
    read_records,
    read_squad,
    read_tagged,
    read_texts,
    validation_batches,
    whole_documents,
)
from qkv.data.files import kind_of, listed
from qkv.data.formats.records import TABLES, Field
from qkv.errors import UserError
from qkv.evaluation.answers import answer_scores
from qkv.evaluation.calibration import Calibration, calibration
from qkv.evaluation.classification import ClassReport, classification_report, multilabel_report
from qkv.evaluation.entities import EntityReport, entity_report
from qkv.evaluation.gaps import gap_scores, gap_totals
from qkv.evaluation.perplexity import language_scores
from qkv.evaluation.preferences import margin, pair_log_probabilities, preferred
from qkv.evaluation.regression import regression_scores
from qkv.evaluation.retrieval import retrieval_scores, uniformity
from qkv.evaluation.scores import (
    Score,
    accuracy,
    check_tokenizer,
    exact_match,
    translation_scores,
)
from qkv.tasks import (
    Answerer,
    Classification,
    Classifier,
    Encoder,
    ImageClassifier,
    LanguageModel,
    Tagger,
    Translator,
)
from qkv.tasks.few_shot import Chooser, FewShot, Normalize, Record
from qkv.tasks.texts import DecodeSettings
from qkv.text import Message, Vocabulary, check_messages

T = TypeVar("T")
Files = str | Path | Sequence[Path]
Progress = Callable[[int, int], None]  # examples done, all examples
Advance = Callable[[int], None]  # examples done since the last call
RECORDS_AT_A_TIME = 256  # between two reports of progress
BATCH_TOKENS = 4096  # as a run validates with, whose figures are then the same


@dataclass(frozen=True)
class Evaluation:
    """How good a model is on some examples; what does not apply is None."""

    scores: list[Score]
    outputs: Sequence[Any] | None = None  # what the model gave for each example
    report: ClassReport | EntityReport | None = None  # figures by class, or by type of entity
    calibration: Calibration | None = None  # of a classifier that gives one class of several

    def __str__(self) -> str:
        parts = ["\n".join(map(str, self.scores))]
        if self.report is not None:
            parts += self.report.tables()
        if self.calibration is not None:
            parts.append(f"It {self.calibration.describe()}.")
        return "\n\n".join(parts)

    def against(self, other: Evaluation, name: str) -> Evaluation:
        """Add by how much each score differs from that of another evaluation."""
        values = {score.name: score.value for score in other.scores}
        scores = list(self.scores)
        for score in self.scores:
            if score.name in values:
                value = score.value - values[score.name]
                scores.append(Score(f"{score.name} against {name}", value, "", score.digits))
        return replace(self, scores=scores)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: each score by its name, and what else there is but the outputs."""
        content: dict[str, Any] = {score.name: asdict(score) for score in self.scores}
        if self.report is not None:
            content |= self.report.to_dict()
        if self.calibration is not None:
            content["calibration"] = asdict(self.calibration)
        return content


@overload
def evaluate(
    model: Translator,
    data: Files | tuple[str | Path, str | Path] | Iterable[Pair],
    *,
    progress: Progress | None = None,
    tokenize: str = "auto",
    source_field: Field | None = None,
    target_field: Field | None = None,
    **settings: Unpack[DecodeSettings],
) -> Evaluation: ...
@overload
def evaluate(
    model: LanguageModel,
    data: Files
    | Iterable[str]
    | Iterable[Sequence[Message]]
    | Iterable[Preference]
    | Iterable[Record],
    *,
    progress: Progress | None = None,
    text_field: Sequence[Field] | None = None,
    few_shot: FewShot | None = None,
    pool: str | Path | Iterable[Record] = (),
    shots: int = 0,
    seed: int = 0,
    normalize: Normalize = "none",
) -> Evaluation: ...
@overload
def evaluate(
    model: Classifier | Encoder,
    data: Files | Iterable[Labelled] | Iterable[tuple[str, ...]],
    *,
    progress: Progress | None = None,
    label_field: Field | None = None,
    text_field: Sequence[Field] | None = None,
) -> Evaluation: ...
@overload
def evaluate(
    model: Encoder,
    data: Files | Iterable[str],
    *,
    progress: Progress | None = None,
    mask: MaskConfig,
    max_length: int | None = None,
    text_field: Sequence[Field] | None = None,
) -> Evaluation: ...
@overload
def evaluate(
    model: Tagger,
    data: Files | Iterable[Sentence],
    *,
    progress: Progress | None = None,
    word_column: int | None = None,
    label_column: int | None = None,
) -> Evaluation: ...
@overload
def evaluate(
    model: Answerer | ImageClassifier,
    data: Files | Iterable[Question] | Iterable[LabelledImage],
    *,
    progress: Progress | None = None,
) -> Evaluation: ...
def evaluate(
    model: Any, data: Any, *, progress: Progress | None = None, **options: Any
) -> Evaluation:
    """Score a model on examples as `qkv.data` reads them, or on the files that hold them.

    `data` by task: (source, target) pairs, or a tuple of two line-aligned files; texts (a list of
    strings), conversations, preferences or, with `few_shot`, records for a language model; labelled
    texts or images; tagged sentences; questions; tuples of one or two texts for an encoder or, with
    `mask`, documents of which it predicts masked tokens. Files are read as the recipe of the run
    that made the model says (`model.recipe`), but for columns and lengths that are given here.
    `progress` is called with the number of examples done and the number of all.
    """
    if not isinstance(data, Iterable | Path):
        raise UserError(
            f"There is nothing to score: {data!r} holds no examples; give a list of them, or the "
            f"name of a file that does."
        )
    for kind, scorer in SCORERS.items():
        if isinstance(model, kind):
            return scorer(model, data, progress, **options)
    raise UserError(
        f"A {type(model).__name__} cannot be evaluated; give what qkv.load returns, such as a "
        f"Translator or a Classifier."
    )


def _translations(
    model: Translator,
    data: Any,
    progress: Progress | None,
    tokenize: str = "auto",
    source_field: Field | None = None,
    target_field: Field | None = None,
    **settings: Unpack[DecodeSettings],
) -> Evaluation:
    """BLEU with its signature, chrF and exact match."""
    check_tokenizer(tokenize)
    if isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], str | Path):
        pairs = read_pairs(*data)
    else:
        trained = model.recipe.data
        fields = _or(source_field, trained.source_field), _or(target_field, trained.target_field)
        pairs = _examples(data, lambda paths: read_pairs((), (), paths, *fields), tuple)
        _check_sizes(pairs, {2})
    sources, references = ([pair[side] for pair in pairs] for side in (0, 1))
    settings.setdefault("n_best", 1)
    outputs = model.translate(
        sources, truncate=True, progress=_advance(progress, len(pairs)), **settings
    )
    return Evaluation(translation_scores(outputs, references, tokenize), outputs)


def _language(
    model: LanguageModel,
    data: Any,
    progress: Progress | None,
    text_field: Sequence[Field] | None = None,
    few_shot: FewShot | None = None,
    **choosing: Any,
) -> Evaluation:
    """Loss, perplexity and bits per byte of texts; or how well the model answers or prefers."""
    if few_shot is not None:
        return evaluate_choices(model, data, few_shot, progress=progress, **choosing)
    files = listed(data) if isinstance(data, str | Path) or _all(data, Path) else []
    hold_text = text_field is not None or model.recipe.task == "generate"
    if not hold_text and any(kind_of(file) in TABLES for file in files):
        if hold_preferences(files):
            return _preferences(model, read_preferences(files), progress)
        return _replies(model, read_conversations(files), progress)
    recipe = _recipe_for(model, "generate")
    items: list[Any] = _documents(files, recipe, text_field) if files else list(data)
    if items and _all(items, Preference):
        return _preferences(model, items, progress)
    if not _all(items, str):
        return _replies(model, items, progress)
    starts = range(0, len(items), RECORDS_AT_A_TIME)
    parts = [items[start : start + RECORDS_AT_A_TIME] for start in starts]
    counted = _counted(parts, len, _advance(progress, len(items)))
    outputs = [score for part in counted for score in model.score(part)]
    scores = language_scores(
        -sum(text.log_probability for text in outputs),
        sum(text.n_tokens for text in outputs),
        sum(text.n_bytes for text in outputs),
    )
    return Evaluation(scores, outputs)


def _replies(
    model: LanguageModel, conversations: Iterable[Sequence[Message]], progress: Progress | None
) -> Evaluation:
    """Percentage of conversations whose last answer the model gives word for word, greedily."""
    checked = [
        check_messages(messages, f"Conversation {number}")
        for number, messages in enumerate(conversations, start=1)
    ]
    answered = [messages for messages in checked if messages[-1]["role"] == "assistant"]
    if not answered:
        raise UserError("There is nothing to score: no conversation ends with an answer.")
    asked = [messages[:-1] for messages in answered]
    advance = _advance(progress, len(asked))
    outputs = model.answers(asked, progress=advance, beams=1, n_best=1, sample=False)
    return Evaluation(
        [exact_match(outputs, [messages[-1]["content"] for messages in answered])], outputs
    )


def _preferences(
    model: LanguageModel, pairs: Sequence[Preference], progress: Progress | None
) -> Evaluation:
    """Percentage of chosen answers that are likelier than the rejected ones, and by how much."""
    template, config = model._template(None), model.model.config
    conversations = encode_conversations(
        [messages for pair in pairs for messages in pair],
        template,
        model.tokenizer,
        Specials(config.pad_id, config.bos_id, config.eos_id),
        model.prompting.talk_bos,
    )
    items, how = PreferenceItems(conversations).no_longer_than(config.max_length)
    plan = batches(items.target_sizes.tolist(), BATCH_TOKENS)
    rows = _counted(plan, len, _advance(progress, len(items)))
    device = next(model.model.parameters()).device
    table = pair_log_probabilities(model.model, items, rows, device)
    return Evaluation([replace(preferred(table), signature=how), margin(table)])


def evaluate_choices(
    model: Chooser,
    data: str | Path | Iterable[Record],
    few_shot: FewShot,
    *,
    pool: str | Path | Iterable[Record] = (),
    shots: int = 0,
    seed: int = 0,
    normalize: Normalize = "none",
    progress: Progress | None = None,
) -> Evaluation:
    """Score the answers that a model chooses for records, each after `shots` examples of the pool.

    "always the commonest" is the accuracy of the most frequent index among the options.
    """
    records = _records(data)
    if not records:
        raise UserError("There is no record to ask about; give at least one.")
    located = [(record, f"Record {number}") for number, record in enumerate(records, 1)]
    right = [few_shot.right(*record) for record in located]
    options = [few_shot.continuations(*record) for record in located]
    prompts = few_shot.prompts(records, _records(pool), shots, seed)
    starts = range(0, len(records), RECORDS_AT_A_TIME)
    parts = [slice(start, start + RECORDS_AT_A_TIME) for start in starts]
    advance = _advance(progress, len(records))
    chosen: list[int] = []
    for part in _counted(parts, lambda part: len(records[part]), advance):
        choices = model.choose(prompts[part], options[part], normalize)
        chosen += [choice.index for choice in choices]
    answers = [
        few_shot.possible(*record)[index] for record, index in zip(located, chosen, strict=True)
    ]
    how = f"{len(records)} records, {shots} shots, seed {seed}, normalize {normalize}"
    commonest = max(Counter(right).values())
    scores = [
        replace(accuracy(chosen, right), signature=how),
        Score("always the commonest", 100 * commonest / len(records)),
    ]
    return Evaluation(scores, answers)


def _classes(
    model: Classifier,
    data: Any,
    progress: Progress | None,
    label_field: Field | None = None,
    text_field: Sequence[Field] | None = None,
) -> Evaluation:
    """Accuracy, F1 and calibration; or correlations, where the labels are numbers."""
    kind, labels, trained = model.classes.kind, model.classes.labels, model.recipe.data
    fields = _or(label_field, trained.label_field), _or(text_field, trained.text_field)
    examples = _examples(data, lambda paths: read_labelled(paths, kind, *fields), Labelled)
    for number, example in enumerate(examples, start=1):
        if not any(text.strip() for text in example.texts):
            raise UserError(f"Example {number} has no text; correct it, or leave it out.")
    gold = [example.label for example in examples]
    if kind != "number":
        _check_known((name for label in gold for name in _names(label)), labels)
    texts = [example.texts for example in examples]
    outputs = model.classify(texts, progress=_advance(progress, len(texts)))
    if kind == "number":
        values = np.array([output.value for output in outputs], np.float64)
        return Evaluation(regression_scores(values, np.array(gold, np.float64)), outputs)
    if kind == "classes":
        report = multilabel_report(
            [output.labels for output in outputs], list(map(_names, gold)), labels
        )
        return Evaluation(report.scores(), outputs, report)
    return _one_class(outputs, list(map(str, gold)), labels)


def _images(model: ImageClassifier, data: Any, progress: Progress | None) -> Evaluation:
    """Accuracy, F1 and calibration."""
    config, labels = model.model.config, model.classes.labels
    size, channels = config.image_size, config.n_channels
    examples = _examples(data, lambda paths: read_images(paths, size, channels), LabelledImage)
    gold = [example.label for example in examples]
    _check_known(gold, labels)
    pixels = [example.pixels for example in examples]
    outputs = model.classify(pixels, progress=_advance(progress, len(pixels)))
    return _one_class(outputs, gold, labels)


def _one_class(
    outputs: list[Classification], gold: Sequence[str], labels: Sequence[str]
) -> Evaluation:
    report = classification_report([output.label for output in outputs], gold, labels)
    probabilities = np.array([list(output.probabilities.values()) for output in outputs])
    trust = calibration(probabilities, [labels.index(label) for label in gold])
    return Evaluation([*report.scores(), *trust.scores()], outputs, report, trust)


def _tags(
    model: Tagger,
    data: Any,
    progress: Progress | None,
    word_column: int | None = None,
    label_column: int | None = None,
) -> Evaluation:
    """F1 of entities; or of labels, where these spell no entities."""
    trained = model.recipe.tag
    columns = _or(word_column, trained.word_column), _or(label_column, trained.label_column)
    sentences = _examples(data, lambda paths: read_tagged(paths, *columns), Sentence)
    words = [tuple(sentence.words) for sentence in sentences]
    tagged = model.tag(words, progress=_advance(progress, len(words)))
    predicted = [tagging.labels for tagging in tagged]
    gold = [sentence.labels for sentence in sentences]
    report: ClassReport | EntityReport
    if model.scheme is not None:
        report = entity_report(predicted, gold)
    else:
        sides = predicted, gold
        ours, theirs = ([label for labels in side for label in labels] for side in sides)
        report = classification_report(ours, theirs, sorted({*ours, *theirs}))
        report = replace(report, confusion=None)  # there may be dozens of labels
    return Evaluation(report.scores(), tagged, report)


def _answers(model: Answerer, data: Any, progress: Progress | None) -> Evaluation:
    """Exact match and F1 as SQuAD's or CMRC's own scripts count."""
    questions = _examples(data, read_squad, Question)
    pairs = [(question.question, question.context) for question in questions]
    outputs = model.answers(pairs, progress=_advance(progress, len(pairs)))
    texts = [best[0].text for best in outputs]
    # Numbers, for ids need not differ between files.
    given = {str(number): text for number, text in enumerate(texts)}
    gold = {
        str(number): [answer.text for answer in question.answers]
        for number, question in enumerate(questions)
    }
    return Evaluation(answer_scores(given, gold), texts)


def _encodings(
    model: Encoder,
    data: Any,
    progress: Progress | None,
    mask: MaskConfig | None = None,
    **options: Any,
) -> Evaluation:
    """How well masked tokens are predicted, where `mask` says which; else how good vectors are."""
    score = _embeddings if mask is None else partial(_gaps, mask=mask)
    return score(model, data, progress, **options)


def _gaps(
    model: Encoder,
    data: Any,
    progress: Progress | None,
    mask: MaskConfig,
    max_length: int | None = None,
    text_field: Sequence[Field] | None = None,
) -> Evaluation:
    """Loss, perplexity and accuracy of masked tokens; the same ones at each call."""
    config = model.model.config
    if config.head != "masked":
        raise UserError(
            "This model has no masked-LM head, so it cannot predict masked tokens; leave `mask` "
            "out to score its vectors, or use a model that was trained with task = 'fill'."
        )
    if mask.pairs != "none" and not config.pair_head:
        raise UserError(
            f"This model has no head for pairs of texts, but mask.pairs is {mask.pairs!r}; set it "
            f"to 'none'."
        )
    files = isinstance(data, str | Path) or (data and _all(data, Path))
    recipe = _recipe_for(model, "fill")
    max_length = _or(max_length, recipe.data.max_length)
    texts = _documents(data, recipe, text_field) if files else list(data)
    if not texts or not _all(texts, str):
        raise UserError(
            "There is nothing to score: give the documents as a list of strings, or the name of a "
            "file that holds them."
        )
    texts = [text for text in texts if text.strip()]
    least, most = MaskedItems.least_length(mask, config.pair_separators), config.max_length
    if max_length and not least <= max_length <= most:
        raise UserError(
            f"max_length is {max_length}, but this model reads sequences of {least} to {most} "
            f"tokens; choose one of these lengths, or leave it out."
        )
    vocabulary = Vocabulary.of(model.tokenizer)
    items = MaskedItems.of(
        Tokens.of_texts(texts, model.tokenizer),
        model.reader.special,
        vocabulary,
        Masker.of(mask, model.tokenizer, vocabulary),
        max_length or most,
        config.pair_separators,
    )
    all_batches = _counted(
        validation_batches(items, BATCH_TOKENS),
        lambda batch: len(batch.target.tokens),
        _advance(progress, len(items)),
    )
    return Evaluation(gap_scores(*gap_totals(model.model, all_batches, model.reader.device)))


def _embeddings(
    model: Encoder,
    data: Any,
    progress: Progress | None,
    label_field: Field | None = None,
    text_field: Sequence[Field] | None = None,
) -> Evaluation:
    """How often a text's partner is the nearest; of single texts, how evenly they are spread."""
    trained = model.recipe.data
    fields = _or(text_field, trained.text_field), _or(label_field, trained.label_field)
    examples = _examples(data, lambda paths: read_texts(paths, *fields), tuple)
    _check_sizes(examples, {1, 2})
    sides = [list(dict.fromkeys(side)) for side in zip(*examples, strict=True)]
    advance = _advance(progress, sum(map(len, sides)))
    vectors = [model.embed(side, normalize=True, progress=advance) for side in sides]
    if len(sides) == 1:
        return Evaluation([uniformity(vectors[0])])
    index = [{text: row for row, text in enumerate(side)} for side in sides]
    pairs = [(index[0][text], index[1][partner]) for text, partner in examples]
    return Evaluation(retrieval_scores(vectors[0], vectors[1], pairs))


SCORERS: Mapping[type, Callable[..., Evaluation]] = {
    Translator: _translations,
    LanguageModel: _language,
    Classifier: _classes,
    ImageClassifier: _images,
    Tagger: _tags,
    Answerer: _answers,
    Encoder: _encodings,
}
"""How a model is scored, by its class."""


def _or(given: T | None, as_trained: T) -> T:
    """Return what is given, or else what the recipe of the model's run says."""
    return as_trained if given is None else given


def _recipe_for(model: LanguageModel | Encoder, task: str) -> Recipe:
    """The recipe of the model's run, or the defaults where that was of another task."""
    recipe = model.recipe
    return recipe if recipe.task == task else recipe_from({"task": task})


def _documents(files: Any, recipe: Recipe, text_field: Sequence[Field] | None) -> list[str]:
    """Read the documents of files as a run does."""
    data = recipe.data
    if text_field:
        data = replace(data, text_field=tuple(text_field), template="")
    return whole_documents(files, data)


def _all(items: Any, kind: type | tuple[type, ...]) -> bool:
    return isinstance(items, list | tuple) and all(isinstance(item, kind) for item in items)


def _examples(data: Any, read: Callable[[list[Path]], list[T]], kind: type) -> list[T]:
    """The examples themselves, of this kind, or those of the files that are named instead."""
    named = isinstance(data, str | Path) or (data and _all(data, (str, Path)))
    examples = read(listed(data)) if named else list(data)
    if not examples:
        raise UserError("There is nothing to score: no examples are given.")
    for number, example in enumerate(examples, start=1):
        if not isinstance(example, kind):
            what = "a tuple of texts" if kind is tuple else f"a qkv.data.{kind.__name__}"
            raise UserError(
                f"Example {number} is {repr(example)[:60]}, but must be {what}; give "
                f"such examples, or the name of a file that holds them."
            )
    return examples


def _check_sizes(examples: Sequence[tuple[Any, ...]], sizes: set[int]) -> None:
    """Refuse tuples of other sizes than the first one, or than these."""
    size = len(examples[0]) if len(examples[0]) in sizes else max(sizes)
    for number, example in enumerate(examples, start=1):
        if len(example) != size or not all(isinstance(text, str) for text in example):
            texts = "text" if size == 1 else "texts"
            raise UserError(
                f"Example {number} is {repr(example)[:60]}, but must be a tuple of {size} {texts}; "
                f"correct it, or leave it out."
            )


def _records(data: Any) -> list[Record]:
    return list(read_records(Path(data))) if isinstance(data, str | Path) else list(data)


def _advance(progress: Progress | None, total: int) -> Advance | None:
    if progress is None:
        return None
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(done, total)

    return advance


def _counted(items: Iterable[T], count: Callable[[T], int], advance: Advance | None) -> Iterator[T]:
    """Yield items, and report how many examples each had when it is done."""
    for item in items:
        yield item
        if advance:
            advance(count(item))


def _names(label: object) -> tuple[str, ...]:
    return label if isinstance(label, tuple) else (str(label),)


def _check_known(given: Iterable[str], known: Sequence[str]) -> None:
    if unknown := set(given) - set(known):
        raise UserError(
            f"The examples have the label {min(unknown)!r}, which the model does not know; its "
            f"labels are {', '.join(known)}."
        )
