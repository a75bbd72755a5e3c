"""Examples in one line."""

import numpy as np
import pytest

from qkv.data import describe_example
from qkv.data.formats.conll import Sentence
from qkv.data.formats.images import LabelledImage
from qkv.data.formats.labelled import Labelled
from qkv.data.formats.squad import Answer, Question


@pytest.mark.parametrize(
    ("example", "line"),
    [
        (("我爱你", "I love\n you "), "我爱你 → I love you"),
        (("x" * 61, "y" * 60), "x" * 59 + "… → " + "y" * 60),
        (("alone",), "alone"),
        (Labelled(("a fine film",), "good"), '"a fine film" → good'),
        (Labelled(("a", "b"), ("x", "y")), '"a" | "b" → x, y'),
        (Labelled(("a",), ()), '"a" → no label'),
        (Labelled(("a",), None), '"a" → no label'),
        (Labelled(("a",), 0.0), '"a" → 0.0'),
        (Sentence(("EU", "rejects"), ("B-ORG", "O")), "EU/B-ORG rejects/O"),
        (Question("1", "who?", "anna", (Answer("anna", 0),)), '"who?" about "anna" → "anna"'),
        (Question("1", "who?", "anna", ()), '"who?" about "anna" → no answer'),
        (LabelledImage(np.zeros((3, 8, 9), np.uint8), "cat"), "image of 3 × 8 × 9 → cat"),
        (
            [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}],
            "user: Hi → assistant: Ho",
        ),
    ],
)
def test_every_kind_of_example_is_one_line(example: object, line: str) -> None:
    assert describe_example(example) == line
