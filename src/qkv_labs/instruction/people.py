"""A made-up world for lab 22: people, facts about them, and sentences and questions about those."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from random import Random

from qkv_labs.texts import read

NEW_PEOPLE, NEW_WORDS, BOTH = "new people", "new wordings", "both new"
KINDS = (NEW_PEOPLE, NEW_WORDS, BOTH)


@dataclass(frozen=True)
class Relation:
    """A kind of fact: its values, sentences that state it, and questions that ask for it."""

    values: list[str]
    said: list[str]
    asked: list[str]  # in tuning
    asked_anew: list[str]  # in words of plain text that the tuning questions do not have


RELATIONS = [Relation(**relation) for relation in read("instruction/world.toml")["relations"]]

Question = tuple[str, str]  # and its answer


@dataclass(frozen=True)
class World:
    """People and their facts, drawn by a seed."""

    seed: int
    n_people: int
    n_asked: int  # of them, in tuning

    @cached_property
    def people(self) -> list[str]:
        """Names of two syllables."""
        syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
        draw = Random(f"names {self.seed}")
        names: dict[str, None] = {}
        while len(names) < self.n_people:
            names["".join(draw.sample(syllables, 2))] = None
        return list(names)

    @cached_property
    def facts(self) -> dict[tuple[str, int], str]:
        """The value of each relation of each person."""
        draw = Random(f"facts {self.seed}")
        return {
            (person, kind): draw.choice(relation.values)
            for person in self.people
            for kind, relation in enumerate(RELATIONS)
        }

    def paragraphs(self, count: int, part: str) -> list[str]:
        """Write plain text: the facts about a person, in any order and wording."""
        draw = Random(f"{part} {self.seed}")
        paragraphs = []
        for _ in range(count):
            person = draw.choice(self.people)
            kinds = draw.sample(range(len(RELATIONS)), len(RELATIONS))
            said = [
                draw.choice(RELATIONS[kind].said).format(p=person, v=self.facts[person, kind])
                for kind in kinds
            ]
            paragraphs.append(" ".join(said))
        return paragraphs

    def questions(self, people: list[str], anew: bool) -> list[Question]:
        """Return all questions about some people, in the wordings of tuning or in new ones."""
        return [
            (wording.format(p=person), self.facts[person, kind])
            for person in people
            for kind, relation in enumerate(RELATIONS)
            for wording in (relation.asked_anew if anew else relation.asked)
        ]

    @property
    def tuning(self) -> list[Question]:
        """The questions of tuning."""
        return self.questions(self.people[: self.n_asked], anew=False)

    @property
    def tests(self) -> dict[str, list[Question]]:
        """The test questions, none of which was tuned on."""
        known, new = self.people[: self.n_asked], self.people[self.n_asked :]
        return {
            NEW_PEOPLE: self.questions(new, anew=False),
            NEW_WORDS: self.questions(known, anew=True),
            BOTH: self.questions(new, anew=True),
        }

    @property
    def gaps(self) -> list[Question]:
        """Plain sentences about the new people without their last word, and that word."""
        return [
            (said.partition("{v}")[0].format(p=person).rstrip(), self.facts[person, kind])
            for person in self.people[self.n_asked :]
            for kind, relation in enumerate(RELATIONS)
            for said in relation.said
        ]
