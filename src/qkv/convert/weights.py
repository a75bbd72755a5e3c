"""Somebody else's tensors under our names, read one at a time, and ours under theirs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from qkv.config import ModelConfig
from qkv.convert.architecture import Architecture, Spare
from qkv.convert.rules import Rule
from qkv.errors import UserError
from qkv.model import parameter_shapes

Shape = tuple[int, ...]
MOST_TOLD = 20  # of what does not fit


class Tensors(Protocol):
    """Tensors whose shapes are known before they are read."""

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """The shape of each tensor, by name."""

    def __getitem__(self, name: str) -> Tensor:
        """Read one."""


def applicable(
    architecture: Architecture, config: ModelConfig, head: str
) -> tuple[list[Rule], dict[str, Shape]]:
    """The rules for the weights that such a model has, and the shapes of these."""
    shapes = parameter_shapes(config)
    found = {rule.ours: rule for rule in architecture.rules(config, head) if rule.ours in shapes}
    if lost := sorted(shapes.keys() - found.keys()):
        raise UserError(
            f"{architecture.name} has no weights for {', '.join(lost[:MOST_TOLD])}, which the "
            f"config asks for; take out of it what asks for them."
        )
    return list(found.values()), shapes


class ForeignWeights(Mapping[str, Tensor]):
    """Our weights, each made from tensors of a checkpoint when it is asked for.

    Whether they fit is known before any is read: what is missing, unexpected or misshapen is named.
    """

    def __init__(
        self, architecture: Architecture, config: ModelConfig, head: str, tensors: Tensors,
        where: Path,
    ) -> None:  # fmt: skip
        self.architecture, self.tensors, self.where = architecture, tensors, where
        rules, self.shapes = applicable(architecture, config, head)
        self._rules = {rule.ours: rule for rule in rules}
        self._names = _their_names(architecture, tensors.shapes)
        expected = expected_shapes(rules, self.shapes)
        self._repeated = self._resolve_copies(expected)
        if config.family != "decoder":
            self._repeated = {}  # others may keep matrices that nobody asks for
        problems = self._misfits(expected) + self._unexpected(expected, config)
        if problems:
            told = sorted(problems)[:MOST_TOLD]
            rest = [f"and {len(problems) - MOST_TOLD} more"] if len(problems) > MOST_TOLD else []
            raise UserError(f"{where} does not fit its config: {'; '.join(told + rest)}.")

    def __getitem__(self, name: str) -> Tensor:
        rule = self._rules[name]
        return rule.read({piece.name: self._read(piece.name) for piece in rule.pieces})

    def __iter__(self) -> Iterator[str]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)

    def _read(self, name: str) -> Tensor:
        found = self.tensors[self._names[name]]
        for copy in self._repeated.get(name, ()):
            if not torch.equal(self.tensors[copy], found):
                raise UserError(
                    f"{self.where}: {copy} and {self._names[name]} differ, but are one by the "
                    f"config; put '\"tie_word_embeddings\": false' into it, if they are meant to."
                )
        return found

    def _resolve_copies(self, expected: Mapping[str, Shape]) -> dict[str, list[str]]:
        """Take a copy where its original is not there, or else remember what it repeats."""
        repeated: dict[str, list[str]] = {}
        for copy, original in (self.architecture.copies or {}).items():
            if copy not in self._names or copy in expected:
                continue
            if original in self._names:
                repeated.setdefault(original, []).append(self._names[copy])
            else:
                self._names[original] = self._names[copy]
        return repeated

    def _misfits(self, expected: Mapping[str, Shape]) -> list[str]:
        problems = []
        for name, shape in expected.items():
            if name not in self._names:
                problems.append(f"missing {name}")
            elif (found := self.tensors.shapes[self._names[name]]) != shape:
                problems.append(f"{self._names[name]} is {list(found)} but should be {list(shape)}")
        return problems

    def _unexpected(self, expected: Mapping[str, Shape], config: ModelConfig) -> list[str]:
        """What nobody asked for; but a body's checkpoint may hold other heads as well."""
        known = set(expected) | set(self.architecture.copies or ())
        for head in self.architecture.classes:
            rules = self.architecture.rules(config, head)
            known |= {piece.name for rule in rules for piece in rule.pieces}
        known_files = {self._names[name] for name in known if name in self._names}
        return [
            f"unexpected {name}"
            for name in self.tensors.shapes
            if name not in known_files and not re.fullmatch(self.architecture.ignored, name)
        ]


def _their_names(architecture: Architecture, shapes: Mapping[str, Shape]) -> dict[str, str]:
    """Each tensor's name as the rules spell it, and as the file does."""
    found: dict[str, str] = {}
    for name in shapes:
        spelt = architecture.canonical(name)
        found[spelt] = name
        if not spelt.startswith(architecture.prefix):
            found.setdefault(architecture.prefix + spelt, name)
    return found


def expected_shapes(rules: list[Rule], shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """The shape that each of their tensors must have."""
    return {
        name: tuple(tensor.shape)
        for rule in rules
        for name, tensor in rule.write(torch.empty(shapes[rule.ours], device="meta")).items()
    }


def add_spare(tensors: Mapping[str, Tensor], spare: Spare) -> dict[str, Tensor]:
    """Their tensors, with those that ours lacks."""
    like = next(iter(tensors.values()))
    return {
        **tensors,
        **{
            name: tensors[given].clone() if isinstance(given, str) else like.new_zeros(given)
            for name, given in spare.items()
        },
    }


def write_weights(rules: list[Rule], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their tensors, from ours."""
    found: dict[str, Tensor] = {}
    for rule in rules:
        found |= {
            name: tensor.contiguous() for name, tensor in rule.write(weights[rule.ours]).items()
        }
    return found
