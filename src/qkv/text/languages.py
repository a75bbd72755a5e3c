"""Language tokens of a translator: which languages it knows, and how they are named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from qkv.errors import UserError

# ISO 639-1, and the codes of three letters that stand for it in NLLB (of a macrolanguage, its
# largest member)
CODES = """
af:afr am:amh ar:arb as:asm ay:ayr az:azj ba:bak be:bel bg:bul bm:bam bn:ben bo:bod bs:bos
ca:cat cs:ces cy:cym da:dan de:deu dz:dzo ee:ewe el:ell en:eng eo:epo es:spa et:est eu:eus
fa:pes fi:fin fj:fij fo:fao fr:fra ga:gle gd:gla gl:glg gn:grn gu:guj ha:hau he:heb hi:hin
hr:hrv ht:hat hu:hun hy:hye id:ind ig:ibo is:isl it:ita ja:jpn jv:jav ka:kat kg:kon ki:kik
kk:kaz km:khm kn:kan ko:kor ku:kmr ky:kir lb:ltz lg:lug li:lim ln:lin lo:lao lt:lit lv:lvs
mg:plt mi:mri mk:mkd ml:mal mn:khk mr:mar ms:zsm mt:mlt my:mya ne:npi nl:nld nn:nno no:nob
ny:nya oc:oci om:gaz or:ory pa:pan pl:pol ps:pbt pt:por qu:quy rn:run ro:ron ru:rus rw:kin
sa:san sc:srd sd:snd sg:sag si:sin sk:slk sl:slv sm:smo sn:sna so:som sq:als sr:srp ss:ssw
st:sot su:sun sv:swe sw:swh ta:tam te:tel tg:tgk th:tha ti:tir tk:tuk tl:tgl tn:tsn tr:tur
ts:tso tt:tat tw:twi ug:uig uk:ukr ur:urd uz:uzn vi:vie wo:wol xh:xho yi:ydd yo:yor zh:zho
zu:zul
"""
THREE_LETTERS = {pair[:2]: pair[3:] for pair in CODES.split()}
TWO_LETTERS = {three: two for two, three in THREE_LETTERS.items()}
USUAL = ("zho_Hans", "arb_Arab")  # where a language is written in several scripts


@dataclass(frozen=True)
class Languages:
    """The language tokens of a translator, and where they stand."""

    ids: Mapping[str, int] = field(default_factory=dict)  # by the model's own codes
    source: str = ""  # where none is named
    target: str = ""
    after_source: bool = False  # the source's token ends its text, after EOS, as in mBART
    starts_target: bool = False  # the target's token comes instead of BOS, and not after it

    def find(self, name: str, role: str) -> int:
        """The token of a language, by its code as this model or another spells it."""
        if not name:
            option = {"source": "--from", "target": "--to"}[role]
            raise UserError(
                f"This model knows {len(self.ids)} languages; name the {role}'s with "
                f"{role}_language ({option}): {self._known()}."
            )
        same = [code for code in self.ids if _plain(code) == _plain(name)]
        alike = same or [code for code in self.ids if language_of(code) == language_of(name)]
        chosen = [code for code in alike if code in USUAL] or alike
        if len(chosen) != 1:
            several = f"is one of {', '.join(chosen)}" if chosen else "is not known"
            raise UserError(
                f"The {role}'s language {name!r} {several}; this model knows {self._known()}."
            )
        return self.ids[chosen[0]]

    def _known(self) -> str:
        return ", ".join(sorted(self.ids))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for `config.json`."""
        return {**asdict(self), "ids": dict(self.ids)}

    @classmethod
    def from_dict(cls, values: Any, where: str) -> Languages:
        """Read plain values, naming `where` they stand in errors."""
        usual = cls()
        fits = isinstance(values, dict) and all(
            name in values and isinstance(values[name], type(value))
            for name, value in usual.to_dict().items()
        )
        if not fits or not all(isinstance(id, int) for id in values["ids"].values()):
            raise UserError(f"{where}: 'languages' does not say what it should; restore the file.")
        return cls(**{name: values[name] for name in usual.to_dict()})


def _plain(code: str) -> str:
    return code.replace("-", "_").lower()


def language_of(code: str) -> str:
    """The language of a code without its country or script: "de" of de_DE and of deu_Latn."""
    first = _plain(code).partition("_")[0]
    return TWO_LETTERS.get(first, first)
