"""One clause, written in Chinese order and in English order.

Chinese keeps its verb and its question words where they are and puts time and place before the
verb; English inflects the verb, moves the auxiliary and the question word to the front, and puts
place and time last. The distance between the two is what attention has to bridge.
"""

from dataclasses import dataclass

from qkv.demo.english import Tense, VerbGroup, join, negated, verb_group
from qkv.demo.lexicon import Adverbial
from qkv.demo.phrases import NOTHING, UNSAID, Combination, Phrase
from qkv.demo.verbs import Verb

_NEGATIONS = {
    Tense.PRESENT: "不",
    Tense.PAST: "没",
    Tense.FUTURE: "不会",
    Tense.PROGRESSIVE: "没在",
    Tense.CAN: "不可以",
    Tense.SHOULD: "不应该",
}
_MARKERS = {
    Tense.PRESENT: "",
    Tense.PAST: "",
    Tense.FUTURE: "会",
    Tense.PROGRESSIVE: "在",
    Tense.CAN: "可以",
    Tense.SHOULD: "应该",
}


@dataclass(frozen=True)
class SentencePair:
    """A sentence in both languages, without its final mark, and its combinations of words."""

    chinese: str
    english: str
    question: bool
    combinations: frozenset[Combination]


@dataclass(frozen=True)
class Clause:
    """The parts of a clause; each is empty unless the sentence needs it."""

    subject: Phrase
    verb: Verb
    tense: Tense = Tense.PRESENT
    complement: Phrase = NOTHING
    negative: bool = False
    question: bool = False
    """Whether 吗 asks for a yes or a no; question words ask by themselves."""
    reason: Adverbial = UNSAID
    time: Adverbial = UNSAID
    time_first: bool = False
    frequency: Adverbial = UNSAID
    manner: Adverbial = UNSAID
    place: Adverbial = UNSAID
    marker: str = ""
    """正在 or 要, where the tense leaves a choice."""
    done: str = ""
    """Position of 了: after the "verb", at the "end", or "" for none."""

    def sentence(self) -> SentencePair:
        """Write both sides, English with a capital."""
        asks = self._inverted or self.subject.english == "who"
        combinations = frozenset(self._combinations())
        return SentencePair(self._chinese(), _capitalised(self._english()), asks, combinations)

    def with_another(self, other: "Clause") -> SentencePair:
        """我喝茶，他喝咖啡: two statements in one sentence."""
        return SentencePair(
            f"{self._chinese()}，{other._chinese()}",
            _capitalised(f"{self._english()} and {other._english()}"),
            False,
            frozenset(self._combinations() + other._combinations()),
        )

    @property
    def _fronted(self) -> str:
        return self.complement.fronted or self.place.fronted or self.reason.fronted

    @property
    def _inverted(self) -> bool:
        return self.question or bool(self._fronted)

    def _chinese(self) -> str:
        subject, time = self.subject.chinese, self.time.chinese
        return "".join(
            (
                time + subject if self.time_first else subject + time,
                self.reason.chinese,
                self.frequency.chinese,
                self._tense_and_place(),
                self.verb.chinese,
                "了" if self.done == "verb" else "",
                self.complement.chinese,
                "了" if self.done == "end" else "",
                "吗" if self.question else "",
            )
        )

    def _tense_and_place(self) -> str:
        if self.negative:
            marker = self.verb.negation or _NEGATIONS[self.tense]
        else:
            marker = self.marker or _MARKERS[self.tense]
        place = f"在{self.place.chinese}" if self.place.chinese else ""
        # 正在公园跑步: one 在 marks both the progressive and the place.
        if place and marker.endswith("在"):
            marker = marker[:-1]
        return marker + self.manner.chinese + place

    def _english(self) -> str:
        group = self._verb_group()
        subject = self.subject.english
        if self._inverted:
            start = join(self._fronted, group.auxiliary, subject)
        else:
            start = join(subject, group.auxiliary)
        return join(
            start,
            self.frequency.english,
            group.main,
            self._complement(),
            self.manner.english,
            self.place.english,
            self.time.english,
        )

    def _complement(self) -> str:
        # 不喜欢猫和狗 denies both: neither cats nor dogs.
        words = self.complement.english
        return words.replace(" and ", " or ") if self.negative else words

    def _verb_group(self) -> VerbGroup:
        plain = not (self.negative or self._inverted)
        agreement = self.subject.agreement
        group = verb_group(self.verb.english, self.tense, agreement, bare=plain)
        if self.negative:
            return group._replace(auxiliary=negated(group.auxiliary))
        return group

    def _combinations(self) -> list[Combination]:
        verb, subjects = self.verb.chinese, self.subject.heads
        pairs = [("object", verb, head) for head in self.complement.heads]
        inner = [pair for pair in self.complement.combinations if pair[0] == "object"]
        combinations = [*pairs, *self.subject.combinations, *self.complement.combinations]
        for subject in subjects:
            combinations += [("clause", subject, *pair[1:]) for pair in pairs + inner]
            if not pairs:
                combinations.append(("activity", subject, verb))
        if self.place.chinese:
            combinations.append(("place", verb, self.place.chinese))
        return combinations


def _capitalised(words: str) -> str:
    return words[0].upper() + words[1:]
