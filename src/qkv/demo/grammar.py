"""The demo grammar: all sentence patterns by name."""

from collections.abc import Callable
from random import Random

from qkv.demo import actions, descriptions, journeys, questions, states, wishes
from qkv.demo.clause import SentencePair

Pattern = Callable[[Random], SentencePair]

PATTERNS: dict[str, Pattern] = {
    pattern.__name__: pattern
    for pattern in (
        actions.habit,
        actions.frequency,
        actions.contrast,
        actions.habit_negative,
        actions.habit_question,
        actions.past_completed,
        actions.past_scene,
        actions.past_activity,
        actions.past_negative,
        actions.past_question,
        actions.future,
        actions.future_polar,
        actions.progressive,
        actions.progressive_polar,
        wishes.liking,
        wishes.wanting,
        wishes.modal,
        journeys.travel,
        journeys.purpose,
        actions.giving,
        states.feeling_for_people,
        states.feeling_for_things,
        states.attitude,
        states.having,
        states.having_family,
        states.having_polar,
        states.existing,
        descriptions.identity,
        descriptions.this_is,
        descriptions.person_quality,
        descriptions.past_quality,
        descriptions.thing_quality,
        descriptions.comparison,
        descriptions.thing_comparison,
        descriptions.location,
        descriptions.thing_location,
        questions.who,
        questions.who_did,
        questions.what,
        questions.whom,
        questions.where,
        questions.where_to,
        questions.why,
        questions.why_feel,
        questions.number,
    )
}
