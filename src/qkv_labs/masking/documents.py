"""Made-up documents for lab 19, in which neighbouring sentences can be recognised."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from random import Random

NAMES = ("anna", "ben", "carla", "david", "emma", "frank", "gina", "hugo", "ines", "jonas")
TIMES = ("today", "yesterday", "often", "again", "early", "late")
TOPICS = (  # what is done, and with what
    ("peels cooks fries tastes cuts serves", "onion soup egg rice fish potato"),
    ("kicks throws catches wins loses passes", "ball match cup race game point"),
    ("reads studies writes prints learns copies", "book letter poem lesson essay page"),
    ("plants waters digs picks sows trims", "rose hedge bean lawn apple tulip"),
    ("plays sings hums hears tunes records", "song tune violin drum waltz piano"),
    ("drives parks mends sells washes rents", "car truck van bus tram engine"),
)
MOODS = ("gladly happily proudly", "sadly angrily wearily")
SPECIAL = ("<pad>", "<s>", "</s>", "<mask>")


CLASSES = [*chain.from_iterable(TOPICS), *MOODS]
WORDS = (*SPECIAL, *NAMES, *TIMES, *" ".join(CLASSES).split())
IDS = {word: number for number, word in enumerate(WORDS)}


@dataclass(frozen=True)
class Line:
    """A sentence, and what its document keeps: the person, the topic and the mood."""

    words: tuple[str, ...]
    person: int
    topic: int
    mood: int

    @property
    def ids(self) -> list[int]:
        """The id of each word."""
        return [IDS[word] for word in self.words]


def line(person: int, topic: int, mood: int, random: Random) -> Line:
    """Draw a sentence such as `anna often peels onion gladly`; half of them name no time."""
    time = random.sample(TIMES, random.randrange(2))
    done = [random.choice(part.split()) for part in (*TOPICS[topic], MOODS[mood])]
    return Line((NAMES[person], *time, *done), person, topic, mood)


Document = list[Line]


def documents(count: int, length: int, random: Random) -> list[Document]:
    """Draw documents that keep one person, one topic and one mood in all their sentences."""
    result = []
    for _ in range(count):
        kept = random.randrange(len(NAMES)), random.randrange(len(TOPICS)), random.randrange(2)
        result.append([line(*kept, random) for _ in range(length)])
    return result
