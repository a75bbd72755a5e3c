"""Texts as a trace reads them: each task's own tokens and labels, for one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from qkv.data import Framed
from qkv.decode.generate import suppressed
from qkv.errors import UserError
from qkv.inspect import IGNORE, Reading, Side, Trace, lay, lay_labels
from qkv.inspect.reading import Says

if TYPE_CHECKING:
    from qkv.tasks.answer import Answerer
    from qkv.tasks.classify import Classifier
    from qkv.tasks.encoder import Encoder
    from qkv.tasks.language import LanguageModel
    from qkv.tasks.reading import Reader
    from qkv.tasks.tag import Tagger
    from qkv.tasks.translate import Translator
    from qkv.tasks.vision import Image, ImageClassifier

SAYS: dict[str, Says] = {"class": "classes", "classes": "each", "number": "number"}


def many(given: str | Sequence[str]) -> list[str]:
    """One text or several, as several; none, or a blank one, cannot be traced."""
    texts = [given] if isinstance(given, str) else list(given)
    if not texts or not all(text.strip() for text in texts):
        raise UserError("A blank text has nothing to trace; give it some words.")
    return texts


def paired(given: str | Sequence[str], texts: Sequence[Any], what: str) -> list[str]:
    """As many targets as texts."""
    targets = [given] if isinstance(given, str) else list(given)
    if len(targets) != len(texts):
        raise UserError(f"There are {len(texts)} texts but {len(targets)} {what}; give one each.")
    return targets


def trace_translation(
    translator: Translator,
    source: str | Sequence[str],
    target: str | Sequence[str] | None,
    settings: dict[str, Any],
) -> Trace:
    """Source and target as they were translated; without a target, the model's own."""
    texts, config = many(source), translator.model.config
    decode = translator.settings(settings)
    encoded = translator.encode(texts)
    if target is None:
        outputs = translator.output_tokens(texts, **settings)
    else:
        outputs = [
            [*translator.first, *translator.tokenizers.target.encode(one), config.eos_id]
            for one in paired(target, texts, "targets")
        ]
    _check_lengths([len(one) for one in outputs], config.max_length, "target")
    device = next(translator.model.parameters()).device
    sources = [[*one, config.eos_id] for one in encoded]
    shifted = [[config.bos_id, *one[:-1]] for one in outputs]
    names = translator.tokenizers
    reading = Reading(
        source=lay(sources, config.pad_id, names.source.tokens, device),
        target=lay(shifted, config.pad_id, names.target.tokens, device),
        labels=lay_labels(outputs, device),
        name=names.target.tokens,
        decode=decode,
        suppress=suppressed(decode, config),
    )
    return Trace(translator.model, reading)


def trace_language(
    language: LanguageModel, source: str | Sequence[str], target: str | Sequence[str] | None
) -> Trace:
    """A text, whose labels are its own next tokens; with a target, the labels are that alone."""
    texts = [source] if isinstance(source, str) else list(source)
    if not texts:
        raise UserError("There is no text to trace; give at least one.")
    rows = [language.encode(text) for text in texts]
    labels = [[*tokens[1:], IGNORE] for tokens in rows]
    if target is not None:
        ends = paired(target, texts, "targets")
        whole = [language.encode(text + end) for text, end in zip(texts, ends, strict=True)]
        starts = [_common(*pair) for pair in zip(rows, whole, strict=True)]
        labels = [
            [*[IGNORE] * (start - 1), *tokens[start:], IGNORE]
            for start, tokens in zip(starts, whole, strict=True)
        ]
        rows = whole
    config, name = language.model.config, language.tokenizer.tokens
    _check_lengths([len(row) for row in rows], config.max_length, "text")
    device = next(language.model.parameters()).device
    reading = Reading(
        target=lay(rows, config.pad_id, name, device),
        labels=_some(lay_labels(labels, device)),
        name=name,
        decode=language.decode,
        suppress=suppressed(language.decode, config),
    )
    return Trace(language.model, reading)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences begin with in common; one at least, which is read first."""
    pairs = zip(one, other, strict=False)
    return max(1, next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other))))


def trace_encoder(
    encoder: Encoder, source: str | Sequence[str], target: str | Sequence[str] | None
) -> Trace:
    """Texts, gaps and all; a target is the text without its gaps, whose tokens are the labels."""
    texts = many(source)
    rows = [encoder.tokens(text, number) for number, text in enumerate(texts, start=1)]
    framed = _framed(encoder.reader, rows)
    labels = None
    masked = encoder.model.config.head == "masked"
    if target is not None:
        if not masked:
            raise UserError("This encoder has no head that guesses tokens, so a target is no use.")
        whole = encoder.reader.encode(paired(target, texts, "targets"))
        labels = [_hidden(encoder, *pair) for pair in zip(rows, whole, strict=True)]
    says: Says = "tokens" if masked else "nothing"
    return _read(encoder.reader, framed, labels, says, pooling=encoder.embedding.pooling)


def _hidden(encoder: Encoder, tokens: Sequence[int], whole: Sequence[int]) -> list[int]:
    """The true tokens of the gaps; special tokens stand at both ends."""
    if len(tokens) != len(whole):
        raise UserError(
            f"The target has {len(whole)} tokens where the text has {len(tokens)} with its gaps; "
            f"write as many gaps as the word has tokens."
        )
    gap = encoder.tokenizer.mask_id
    inner = [true if read == gap else IGNORE for read, true in zip(tokens, whole, strict=True)]
    return [IGNORE, *inner, IGNORE]


def trace_classes(
    classifier: Classifier,
    source: str | tuple[str, ...] | Sequence[str | tuple[str, ...]],
    target: str | Sequence[str] | None,
) -> Trace:
    """Texts or pairs of them; a target is the true label (several: joined by `|`), or a number."""
    texts = [source] if isinstance(source, str | tuple) else list(source)
    if not texts:
        raise UserError("There is no text to trace; give at least one.")
    framed, owners = classifier.frame([(one,) if isinstance(one, str) else one for one in texts])
    if len(owners) != len(texts):
        raise UserError("A text is longer than the model reads at once; trace a part of it.")
    kind, names = classifier.classes.kind, classifier.classes.labels
    says = SAYS[kind]
    labels = None
    if target is not None:
        labels = [_label(one, names, says) for one in paired(target, texts, "labels")]
        if says == "number":
            scale = classifier.classes
            labels = [[(one[0] - scale.mean) / scale.deviation] for one in labels]
    return _read(classifier.reader, framed, labels, says, names)


def _label(given: str, names: Sequence[str], says: Says) -> list[Any]:
    if says == "number":
        try:
            return [float(given)]
        except ValueError:
            raise UserError(f"The target {given!r} is not a number.") from None
    asked = given.split("|") if says == "each" else [given]
    for one in asked:
        if one not in names:
            raise UserError(f"{one!r} is no label of this model; it has {', '.join(names)}.")
    if says == "each":
        return [int(name in asked) for name in names]
    return [names.index(given)]


def trace_tags(tagger: Tagger, source: str | Sequence[str], target: Sequence[str] | None) -> Trace:
    """A sentence, or its words; a target is the true label of each word."""
    words = source.split() if isinstance(source, str) else list(source)
    if not words:
        raise UserError("A blank text has nothing to trace; give it some words.")
    windows = tagger.frame([words])
    if len(windows) != 1:
        raise UserError("The sentence is longer than the model reads at once; trace a part of it.")
    (window,), labels = windows, None
    if target is not None:
        if len(target) != len(words):
            raise UserError(f"{len(words)} words need as many labels, not {len(target)}.")
        row = [IGNORE] * len(window.framed.tokens)
        for place, label in zip(window.places, target, strict=True):
            (row[place],) = _label(label, tagger.tags.labels, "classes")
        labels = [row]
    return _read(tagger.reader, [window.framed], labels, "classes", tagger.tags.labels)


def trace_answer(answerer: Answerer, source: tuple[str, str], target: str | None) -> Trace:
    """A question and a text; a target is the words of the text that answer it."""
    question, text = source
    many([question, text])
    context = answerer.spell([text])[text]
    parts = answerer.frame([question], [context])
    if len(parts) != 1:
        raise UserError("The text is longer than the model reads at once; trace a part of it.")
    labels = None
    if target is not None:
        start = text.find(target)
        found = context.tokens(start, start + len(target)) if start >= 0 and target else None
        if found is None:
            raise UserError(f"The text does not hold the answer {target!r}.")
        labels = [[parts[0].begin + place for place in found]]
    return _read(answerer.reader, [parts[0].framed], labels, "spans", ("start", "end"))


def trace_image(classifier: ImageClassifier, image: Image, target: str | None) -> Trace:
    """An image, whose tokens are its patches by row and column."""
    pixels, names = classifier.pixels([image]), classifier.classes.labels
    config = classifier.model.config
    count = config.image_size // config.patch_size
    patches = ("[first]", *(f"{row},{column}" for row in range(count) for column in range(count)))
    labels = None
    if target is not None:
        labels = torch.tensor(_label(target, names, "classes"), device=pixels.device)
    reading = Reading(
        source=Side(pixels, (patches,)),
        labels=labels,
        says="classes",
        name=lambda ids: [names[id] for id in ids],
    )
    return Trace(classifier.model, reading)


def _some(labels: torch.Tensor) -> torch.Tensor | None:
    """Labels, unless none of them asks for anything: then there is no loss to speak of."""
    return labels if bool((labels != IGNORE).any()) else None


def _framed(reader: Reader, rows: Sequence[Sequence[int]]) -> list[Framed]:
    _check_lengths([len(row) for row in rows], reader.room(), "text")
    return [reader.frame(row) for row in rows]


def _check_lengths(lengths: Sequence[int], limit: int, what: str) -> None:
    if max(lengths) > limit:
        raise UserError(
            f"The {what} has {max(lengths):,} tokens, but the model reads at most {limit:,} in one "
            f"pass; shorten it."
        )


def _read(
    reader: Reader,
    framed: Sequence[Framed],
    labels: Sequence[Sequence[Any]] | None,
    says: Says,
    names: Sequence[str] = (),
    **others: Any,
) -> Trace:
    """Framed texts and labels as one reading; outputs are tokens unless they have names."""
    tokens, layout, segments = reader.pad(framed)
    spelt = [reader.tokenizer.tokens(one.tokens) for one in framed]
    width = tokens.shape[1]
    source = Side(tokens, tuple((*one, *[""] * (width - len(one))) for one in spelt), layout)
    laid = None
    if labels is not None:
        by_token = len(labels[0]) == len(framed[0].tokens)
        laid = lay_labels(labels, reader.device) if by_token else torch.tensor(labels)
        one_class = says == "classes" and not by_token
        laid = _some((laid[:, 0] if one_class else laid).to(reader.device))
    reading = Reading(
        source=source,
        labels=laid,
        segments=segments,
        says=says,
        name=(lambda ids: [names[id] for id in ids]) if names else reader.tokenizer.tokens,
        **others,
    )
    return Trace(reader.model, reading)
