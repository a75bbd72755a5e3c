"""Examples as one line of text, to show what was read."""

from __future__ import annotations

from qkv.data.formats.conll import Sentence
from qkv.data.formats.images import LabelledImage
from qkv.data.formats.labelled import Labelled
from qkv.data.formats.preferences import Preference
from qkv.data.formats.squad import Question

WIDTH = 60  # characters of each text


def describe_example(example: object) -> str:
    """Describe an example in one line, long texts cut short, like '我爱你 → I love you'."""
    match example:
        case Labelled(texts, label):
            label = ", ".join(label) or "no label" if isinstance(label, tuple) else label
            return f"{' | '.join(map(_quoted, texts))} → {'no label' if label is None else label}"
        case Sentence(words, labels):
            return _short(" ".join(map("{}/{}".format, words, labels)))
        case Question(question=question, context=context, answers=answers):
            answer = _quoted(answers[0].text) if answers else "no answer"
            return f"{_quoted(question)} about {_quoted(context)} → {answer}"
        case LabelledImage(pixels, label):
            return f"image of {' × '.join(map(str, pixels.shape))} → {label}"
        case Preference(chosen, rejected):
            better, worse = (_quoted(messages[-1]["content"]) for messages in (chosen, rejected))
            return f"{describe_example(chosen[:-1])} → {better} rather than {worse}"
        case tuple():  # a pair, or texts alone
            return " → ".join(map(_short, example))
        case list():
            return " → ".join(
                f"{message['role']}: {_short(message['content'])}" for message in example
            )
    raise TypeError(f"no example: {example!r}")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def _quoted(text: str) -> str:
    return f'"{_short(text)}"'
