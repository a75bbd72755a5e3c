"""The demo grammar: all sentence patterns by name."""

from collections.abc import Callable
from inspect import isfunction
from random import Random

from qkv.demo import actions, descriptions, journeys, questions, states, wishes
from qkv.demo.clause import SentencePair

Pattern = Callable[[Random], SentencePair]

PATTERNS: dict[str, Pattern] = {
    name: pattern
    for module in (actions, wishes, journeys, states, descriptions, questions)
    for name, pattern in vars(module).items()
    if isfunction(pattern) and pattern.__module__ == module.__name__ and name[0] != "_"
}
"""Each public function of these modules is a pattern; a corpus is drawn in their order."""
