"""What an encoder is taught: masked words first, then classes, tags, answers or likeness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qkv.config.fields import check_ranges, setting
from qkv.errors import UserError


@dataclass(frozen=True)
class MaskConfig:
    """What is hidden from an encoder that learns to fill gaps, and which pairs it is shown."""

    share: float = setting(0.15, "of the tokens are to be guessed", least=0.01, most=0.9)
    random: float = setting(0.1, "of these are replaced by random tokens", least=0, most=1)
    kept: float = setting(
        0.1, "of these are left as they are; all others become the mask token", least=0, most=1
    )
    units: Literal["token", "word", "span"] = setting(
        "token", "what is hidden at a time: tokens, whole words, or spans of words"
    )
    span_length: float = setting(
        5.0, "span: mean length in words, before the longest are cut", least=1
    )
    longest_span: int = setting(10, "span: no span has more words", least=1)
    pairs: Literal["none", "next", "order"] = setting(
        "none",
        "texts in pairs: next: half the second ones come from elsewhere (BERT); order: half are "
        "swapped (ALBERT); what is true is learnt from the first token",
    )

    def __post_init__(self) -> None:
        check_ranges(self, "mask")
        if self.random + self.kept > 1:
            raise UserError(
                f"mask: random ({self.random}) and kept ({self.kept}) are shares of the same "
                f"tokens and must not be more than 1 together."
            )


@dataclass(frozen=True)
class TeacherConfig:
    """Classifiers whose answers are learnt from, beside or instead of the labels."""

    models: tuple[str, ...] = setting(
        (), "classify: model folders or names; the mean of what they say is learnt from"
    )
    text: tuple[str, ...] = setting(
        (), "texts without labels, a line each or as tables: the teachers alone say what they are"
    )
    weight: float = setting(
        0.5, "of the teachers, where there is a label too; that has the rest", least=0, most=1
    )
    temperature: float = setting(
        2.0, "divides both sides' logits: above 1, unlikely classes teach more", least=0.01
    )

    def __post_init__(self) -> None:
        check_ranges(self, "teacher")
        if self.text and not self.models:
            raise UserError(
                "teacher: text has no labels, so somebody must say what it is; name models too."
            )


@dataclass(frozen=True)
class ClassifyConfig:
    """What a label is, and how long texts are read; stored with the model."""

    kind: Literal["class", "classes", "number"] = setting(
        "class", "one class of several, any number of classes at once, or a number"
    )
    threshold: float = setting(
        0.5, "classes: those at least this probable are given", least=0, most=1
    )
    weights: Literal["none", "balanced"] = setting(
        "none", "balanced: rare classes count for more, in inverse proportion"
    )
    overlap: int = setting(
        64, "tokens that the windows over a text longer than the model share", least=0
    )
    shift: int = setting(
        0, "images: training moves each by up to this many pixels at random", least=0
    )

    def __post_init__(self) -> None:
        check_ranges(self, "classify")


@dataclass(frozen=True)
class TagConfig:
    """Where words and labels stand, and which sequences of labels are valid."""

    scheme: Literal["auto", "iob1", "iob2", "bioes", "none"] = setting(
        "auto", "how entities are marked in the files; none: every sequence of labels is valid"
    )
    word_column: int = setting(0, "the words' column; negative ones count from the last")
    label_column: int = setting(-1, "the labels' column")
    overlap: int = setting(
        32, "tokens that the windows over a sentence longer than the model share", least=0
    )

    def __post_init__(self) -> None:
        check_ranges(self, "tag")


@dataclass(frozen=True)
class AnswerConfig:
    """How answers are looked for in a text; stored with the model."""

    overlap: int = setting(128, "tokens that the windows over a long text share", least=0)
    max_question: int = setting(64, "tokens of a question that are read", least=1)
    max_answer: int = setting(30, "tokens of the longest answer", least=1)
    no_answer: float = setting(
        0.0, "what a span's score must exceed that of no answer by, where there may be none"
    )

    def __post_init__(self) -> None:
        check_ranges(self, "answer")


@dataclass(frozen=True)
class EmbedConfig:
    """How a text becomes one vector; stored with the model."""

    pooling: Literal["mean", "first"] = setting(
        "mean", "a text's vector: the mean of its tokens' vectors, or the first one"
    )
    normalize: bool = setting(True, "scale vectors to length 1")
    temperature: float = setting(
        0.05, "contrast: likenesses are divided by this before the softmax", least=0.001
    )

    def __post_init__(self) -> None:
        check_ranges(self, "embed")
