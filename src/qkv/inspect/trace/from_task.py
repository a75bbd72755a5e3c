"""Traces of the objects that `qkv.load` returns: each task's own tokens and labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from qkv.config import DecodeConfig
from qkv.data import IGNORE, Framed
from qkv.decode.request import suppressed
from qkv.errors import UserError
from qkv.inspect.trace.inputs import Inputs, OutputKind, Side, pad_labels
from qkv.inspect.trace.trace import Trace
from qkv.tasks.texts import check_pair, check_several, check_text

if TYPE_CHECKING:
    from qkv.tasks.answer import Answerer
    from qkv.tasks.classify import Classifier
    from qkv.tasks.encoder import Encoder
    from qkv.tasks.language import LanguageModel
    from qkv.tasks.reading import Reader
    from qkv.tasks.tag import Tagger
    from qkv.tasks.translate import Translator
    from qkv.tasks.vision import Image, ImageClassifier


def trace_translation(
    translator: Translator,
    source: str | Sequence[str],
    target: str | Sequence[str] | None,
    settings: dict[str, Any],
    languages: tuple[str, str] = ("", ""),
    outputs: Sequence[Sequence[int]] | None = None,
) -> Trace:
    """Trace a translation into the target or, without one, into the model's own output.

    `outputs` are tokens of that output which are known already.
    """
    texts, config = _texts(source), translator.model.config
    decode, tokenizers = translator.settings(settings), translator.tokenizers
    encoded = translator.encode(texts, language=languages[0])
    framing = translator.framing(DecodeConfig(), *languages)
    if target is not None:
        outputs = [
            [*framing.given, *tokenizers.target.encode(text), config.eos_id]
            for text in _one_each(target, texts, "targets")
        ]
    elif outputs is None:
        outputs = translator.output_tokens(texts, languages, **settings)
    _check_lengths(outputs, config.max_length, "target")
    device = next(translator.model.parameters()).device
    sources = [[*tokens, *framing.after] for tokens in encoded]
    shifted = [[framing.start, *tokens[:-1]] for tokens in outputs]
    inputs = Inputs(
        source=Side.pad(sources, config.pad_id, tokenizers.source.sequence_tokens, device),
        target=Side.pad(shifted, config.pad_id, tokenizers.target.sequence_tokens, device),
        labels=pad_labels(outputs, device),
        name=tokenizers.target.tokens,
        spell=tokenizers.target.sequence_tokens,
        decode=decode,
        suppress=suppressed(decode, config),
        prompt=(framing.start, *framing.given),
    )
    return Trace(translator.model, inputs)


def trace_language(
    language: LanguageModel, source: str | Sequence[str], target: str | Sequence[str] | None
) -> Trace:
    """Trace a text, labelled by its own next tokens or, with a target after it, by that alone."""
    texts = _listed(source)
    if not texts:
        raise UserError("There is no text to trace; give at least one.")
    rows = [language.encode(text) for text in texts]
    labels = [[*tokens[1:], IGNORE] for tokens in rows]
    if target is not None:
        ends = _one_each(target, texts, "targets")
        whole = [language.encode(text + end) for text, end in zip(texts, ends, strict=True)]
        starts = [_common_length(*pair) for pair in zip(rows, whole, strict=True)]
        labels = [
            [*[IGNORE] * (start - 1), *tokens[start:], IGNORE]
            for start, tokens in zip(starts, whole, strict=True)
        ]
        rows = whole
    return trace_tokens(language, rows, labels)


def trace_tokens(
    language: LanguageModel, rows: Sequence[Sequence[int]], labels: Sequence[Sequence[int]]
) -> Trace:
    """Trace rows of tokens in a language model; labels that are all IGNORE are none."""
    config, spell = language.model.config, language.tokenizer.sequence_tokens
    _check_lengths(rows, config.max_length, "text")
    device = next(language.model.parameters()).device
    inputs = Inputs(
        target=Side.pad(rows, config.pad_id, spell, device),
        labels=_unless_empty(pad_labels(labels, device)),
        name=language.tokenizer.tokens,
        spell=spell,
        decode=language.decode,
        suppress=suppressed(language.decode, config),
    )
    return Trace(language.model, inputs)


def trace_encoder(
    encoder: Encoder, source: str | Sequence[str], target: str | Sequence[str] | None
) -> Trace:
    """Trace texts with gaps; the target is the text without gaps, whose tokens are the labels."""
    texts = _texts(source)
    rows = [encoder.tokens(text, number) for number, text in enumerate(texts, start=1)]
    _check_lengths(rows, encoder.reader.room(), "text")
    labels = None
    masked = encoder.model.config.head == "masked"
    if target is not None:
        if not masked:
            raise UserError(
                "This encoder has no head that predicts tokens; trace it without a target."
            )
        whole = encoder.reader.encode(_one_each(target, texts, "targets"))
        labels = [_gap_labels(encoder, *pair) for pair in zip(rows, whole, strict=True)]
    framed = [encoder.reader.frame(row) for row in rows]
    kind: OutputKind = "tokens" if masked else "none"
    return _trace(encoder.reader, framed, labels, kind, pooling=encoder.embedding.pooling)


def trace_classes(
    classifier: Classifier,
    source: str | tuple[str, ...] | Sequence[str | tuple[str, ...]],
    target: str | Sequence[str] | None,
) -> Trace:
    """Trace texts or pairs; the target is the true label (several: joined by `|`) or number."""
    texts = [source] if isinstance(source, tuple) else _listed(source)
    if not texts:
        raise UserError("There is no text to trace; give at least one.")
    parts = [text if isinstance(text, tuple | list) else (text,) for text in texts]
    for number, part in enumerate(parts, start=1):
        for text in part:
            check_text(text, number)
    framed, owners = classifier.frame([tuple(part) for part in parts])
    if len(owners) != len(texts):
        raise UserError("A text is longer than the model's context; trace a part of it.")
    classes = classifier.classes
    labels = None
    if target is not None:
        given = _one_each(target, texts, "labels")
        labels = [_label_ids(label, classes.labels, classes.kind) for label in given]
        if classes.kind == "number":
            labels = [[(value - classes.mean) / classes.deviation] for (value,) in labels]
    return _trace(classifier.reader, framed, labels, classes.kind, classes.labels)


def trace_tags(tagger: Tagger, source: str | Sequence[str], target: Sequence[str] | None) -> Trace:
    """Trace a sentence, or its words; the target is the true label of each word."""
    words = source.split() if isinstance(source, str) else _listed(source)
    for number, word in enumerate(words, start=1):
        check_text(word, number)
    _texts(" ".join(words))
    windows = tagger.frame([words])
    if len(windows) != 1:
        raise UserError("The sentence is longer than the model's context; trace a part of it.")
    (window,), labels = windows, None
    if target is not None:
        if len(target) != len(words):
            raise UserError(f"{len(words)} words need as many labels, not {len(target)}.")
        row = [IGNORE] * len(window.framed.tokens)
        for position, label in zip(window.places, target, strict=True):
            (row[position],) = _label_ids(label, tagger.tags.labels, "class")
        labels = [row]
    return _trace(tagger.reader, [window.framed], labels, "class", tagger.tags.labels)


def trace_answer(answerer: Answerer, source: tuple[str, str], target: str | None) -> Trace:
    """Trace a question and a text; the target is the words of the text that answer it."""
    check_pair(source, 1)
    question, text = _texts(source)
    context = answerer.spell([text])[text]
    parts = answerer.frame([question], [context])
    if len(parts) != 1:
        raise UserError("The text is longer than the model's context; trace a part of it.")
    labels = None
    if target is not None:
        start = text.find(target)
        span = context.tokens(start, start + len(target)) if start >= 0 and target else None
        if span is None:
            raise UserError(f"The text does not contain the answer {target!r}; give words of it.")
        labels = [[parts[0].begin + position for position in span]]
    return _trace(answerer.reader, [parts[0].framed], labels, "span", ("start", "end"))


def trace_image(classifier: ImageClassifier, image: Image, target: str | None) -> Trace:
    """Trace an image, whose tokens are its patches, named by row and column."""
    pixels, names = classifier.pixels([image]), classifier.classes.labels
    config = classifier.model.config
    count = config.image_size // config.patch_size
    patches = ("[first]", *(f"{row},{column}" for row in range(count) for column in range(count)))
    labels = None
    if target is not None:
        labels = torch.tensor(_label_ids(target, names, "class"), device=pixels.device)
    inputs = Inputs(
        source=Side(pixels, (patches,)),
        labels=labels,
        output_kind="class",
        name=lambda ids: [names[id] for id in ids],
    )
    return Trace(classifier.model, inputs)


def _texts(given: str | Sequence[str]) -> list[str]:
    texts = _listed(given)
    for number, text in enumerate(texts, start=1):
        check_text(text, number)
    if not texts or not all(text.strip() for text in texts):
        raise UserError("A blank text has nothing to trace; give it some words.")
    return texts


def _listed(given: Any) -> list[Any]:
    """Return a lone text as a list of it, and several as they are."""
    check_several(given)
    return [given] if isinstance(given, str) else list(given)


def _one_each(given: str | Sequence[str], texts: Sequence[Any], what: str) -> list[str]:
    targets = [given] if isinstance(given, str) else list(given)
    if len(targets) != len(texts):
        raise UserError(f"There are {len(texts)} texts but {len(targets)} {what}; give one each.")
    return targets


def _common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the common start of two sequences, at least 1: the first token is never a label."""
    same = [a == b for a, b in zip(first, second, strict=False)]
    return max(1, same.index(False) if False in same else len(same))


def _gap_labels(encoder: Encoder, tokens: Sequence[int], whole: Sequence[int]) -> list[int]:
    """The true tokens of the gaps, with special tokens at both ends."""
    if len(tokens) != len(whole):
        raise UserError(
            f"The target has {len(whole)} tokens but the text with its gaps {len(tokens)}; write "
            "as many gaps as the word has tokens."
        )
    gap = encoder.tokenizer.mask_id
    inner = [true if read == gap else IGNORE for read, true in zip(tokens, whole, strict=True)]
    return [IGNORE, *inner, IGNORE]


def _label_ids(given: str, names: Sequence[str], kind: str) -> list[Any]:
    if kind == "number":
        try:
            return [float(given)]
        except ValueError:
            raise UserError(f"The target {given!r} is not a number; give one.") from None
    labels = given.split("|") if kind == "classes" else [given]
    for label in labels:
        if label not in names:
            raise UserError(f"{label!r} is not a label of this model; it has {', '.join(names)}.")
    if kind == "classes":
        return [int(name in labels) for name in names]
    return [names.index(given)]


def _unless_empty(labels: torch.Tensor) -> torch.Tensor | None:
    """Drop labels that are all IGNORE, which have no loss."""
    return labels if bool((labels != IGNORE).any()) else None


def _check_lengths(rows: Sequence[Sequence[int]], limit: int, what: str) -> None:
    longest = max(map(len, rows))
    if longest > limit:
        raise UserError(
            f"The {what} has {longest:,} tokens, but the model reads at most {limit:,} in one "
            "pass; shorten it."
        )


def _trace(
    reader: Reader,
    framed: Sequence[Framed],
    labels: Sequence[Sequence[Any]] | None,
    kind: OutputKind,
    names: Sequence[str] = (),
    **others: Any,
) -> Trace:
    """Trace framed texts; outputs are tokens unless they have names."""
    tokens, layout, segments = reader.pad(framed)
    spelt = [reader.tokenizer.sequence_tokens(text.tokens) for text in framed]
    width = tokens.shape[1]
    source = Side(tokens, tuple((*row, *[""] * (width - len(row))) for row in spelt), layout)
    padded = None
    if labels is not None:
        per_token = len(labels[0]) == len(framed[0].tokens)
        padded = pad_labels(labels, reader.device) if per_token else torch.tensor(labels)
        one_class = kind == "class" and not per_token
        padded = _unless_empty((padded[:, 0] if one_class else padded).to(reader.device))
    inputs = Inputs(
        source=source,
        labels=padded,
        segments=segments,
        output_kind=kind,
        name=(lambda ids: [names[id] for id in ids]) if names else reader.tokenizer.tokens,
        **others,
    )
    return Trace(reader.model, inputs)
