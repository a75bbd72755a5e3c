"""Foreign tensors under our names, read one at a time, and ours under theirs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from qkv.config import ModelConfig
from qkv.convert.architectures.architecture import Architecture, Spare
from qkv.convert.architectures.name_tables import AS_IS, TRANSPOSED, Rule
from qkv.errors import UserError
from qkv.model import parameter_shapes
from qkv.model.quantized_matrix import QuantizedMatrix, stack_rows
from qkv.weights import FLOATS, LazyWeights, StoredTensors

Shape = tuple[int, ...]
MOST_TOLD = 20  # of what does not fit; more is told of all layers at once
MOST_FOLDED = 100
LAYER = re.compile(r"\.(\d+)\.")  # in a name


class Tensors(Protocol):
    """Tensors whose shapes are known before they are read."""

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """The shape of each tensor, by name."""

    def __getitem__(self, name: str) -> Tensor:
        """Read one."""


@runtime_checkable
class QuantizedTensors(Tensors, Protocol):
    """Tensors of which some are scaled integers."""

    quantized: frozenset[str]  # the names of these

    def matrix(self, name: str) -> QuantizedMatrix:
        """Read one of these in our layout, (out, in)."""


def applicable(
    architecture: Architecture, config: ModelConfig, head: str
) -> tuple[list[Rule], dict[str, Shape]]:
    """The rules for the weights that such a model has, and the shapes of these."""
    shapes = parameter_shapes(config)
    rules = architecture.all_rules(config, head)
    found = {rule.ours: rule for rule in rules if rule.ours in shapes}
    if lost := sorted(shapes.keys() - found.keys()):
        raise UserError(
            f"{architecture.name} has no weights for {', '.join(lost[:MOST_TOLD])}, which the "
            f"config asks for; take out of it what asks for them."
        )
    return list(found.values()), shapes


class ForeignWeights(LazyWeights):
    """Our weights, each made from tensors of a checkpoint when it is asked for.

    Whether they fit is known before any is read: what is missing, unexpected or misshapen is named.
    """

    def __init__(
        self,
        architecture: Architecture,
        config: ModelConfig,
        head: str,
        tensors: Tensors,
        where: Path,
        zeros: str = r"(?!)",
    ) -> None:
        self.architecture, self.tensors, self.where = architecture, tensors, where
        self.zeros = re.compile(zeros)  # biases that the config leaves out
        try:
            rules, self.shapes = applicable(architecture, config, head)
        except UserError as error:
            raise UserError(f"{where}: {error}") from error
        self._rules = {rule.ours: rule for rule in rules}
        self._names = _their_names(architecture, tensors.shapes)
        self._expected = expected = expected_shapes(rules, self.shapes)
        self._repeated = self._resolve_copies(expected)
        if not _reads_copies(config):
            self._repeated = {}  # the file may keep matrices that nobody asks for
        problems = self._misfits(expected) + self._unexpected(expected, config)
        if problems:
            raise UserError(f"{where} does not fit its config: {_told(problems)}.")
        self.quantized = frozenset(filter(self._is_quantized, self._rules))

    def __getitem__(self, name: str) -> Tensor:
        rule = self._rules[name]
        return rule.read({part.name: self._read(part.name) for part in rule.parts})

    def matrix(self, name: str) -> QuantizedMatrix | None:
        """Read a weight as scaled integers, where all of its parts are such; None elsewhere."""
        if name not in self.quantized:
            return None
        assert isinstance(self.tensors, QuantizedTensors)
        parts = self._rules[name].parts
        return stack_rows([self.tensors.matrix(self._names[part.name]) for part in parts])

    def _is_quantized(self, name: str) -> bool:
        if not isinstance(self.tensors, QuantizedTensors):
            return False
        parts = self._rules[name].parts
        # `QuantizedTensors` are laid out as ours, and so need no transposing.
        return all(
            part.form in (AS_IS, TRANSPOSED)
            and part.name not in self._repeated
            and self._names.get(part.name) in self.tensors.quantized
            for part in parts
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)

    def _read(self, name: str) -> Tensor:
        if self.zeros.fullmatch(name):
            beside = self._names[name.removesuffix("bias") + "weight"]
            return torch.zeros(self._expected[name], dtype=self.tensors[beside].dtype)
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
            if original not in self._names:
                self._names[original] = self._names[copy]
            elif copy.endswith("weight"):  # the oldest files have a second bias that nobody read
                repeated.setdefault(original, []).append(self._names[copy])
        return repeated

    def _misfits(self, expected: Mapping[str, Shape]) -> list[str]:
        problems = []
        for name, shape in expected.items():
            if self.zeros.fullmatch(name):
                continue
            if name not in self._names:
                problems.append(f"missing {name}")
            elif (found := self.tensors.shapes[self._names[name]]) != shape:
                problems.append(f"{self._names[name]} is {list(found)} but should be {list(shape)}")
            elif kind := self._wrong_kind(name):
                problems.append(f"{self._names[name]} is {kind}, no float of 16 bits or more")
        return problems

    def _wrong_kind(self, name: str) -> str:
        """Whole numbers and floats of 8 bits mean nothing without the scale that they lack here."""
        if not isinstance(self.tensors, StoredTensors):  # GGUF's kinds are known to its reader
            return ""
        kind = self.tensors.kinds[self._names[name]]
        return "" if kind in FLOATS else kind

    def _unexpected(self, expected: Mapping[str, Shape], config: ModelConfig) -> list[str]:
        """What nobody asked for; but a body's checkpoint may hold other heads as well."""
        known = set(expected) | set(self.architecture.copies or ())
        for head in self.architecture.classes:
            rules = self.architecture.all_rules(config, head)
            known |= {part.name for rule in rules for part in rule.parts}
        known_files = {self._names[name] for name in known if name in self._names}
        return [
            f"unexpected {name}"
            for name in self.tensors.shapes
            if name not in known_files and not re.fullmatch(self.architecture.ignored, name)
        ]


def _reads_copies(config: ModelConfig) -> bool:
    """Whether a matrix that repeats another would be read, were they not one by the config."""
    if config.family == "encoder":
        return config.head == "masked" and config.tie != "none"
    return config.family == "decoder" or config.tie in ("all", "inputs")


def _told(problems: list[str]) -> str:
    """Each of them, in a sentence; where they are many, what is the same in many layers once."""
    if len(problems) <= MOST_TOLD:
        return "; ".join(sorted(problems))
    layers: dict[str, set[int]] = {}
    for problem in problems:
        found = LAYER.search(problem)
        layers.setdefault(LAYER.sub(".{}.", problem, count=1), set()).update(
            [int(found[1])] if found else []
        )
    told = sorted(name.replace("{}", _numbers(sorted(of))) for name, of in layers.items())
    rest = [f"and {len(told) - MOST_FOLDED} more"] if len(told) > MOST_FOLDED else []
    return "; ".join(told[:MOST_FOLDED] + rest)


def _numbers(layers: list[int]) -> str:
    """{0-11}, {0,2} or 3."""
    if len(layers) < 2:
        return "".join(map(str, layers))
    in_a_row = layers[-1] - layers[0] == len(layers) - 1
    return f"{{{layers[0]}-{layers[-1]}}}" if in_a_row else f"{{{','.join(map(str, layers))}}}"


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
    like, found = next(iter(tensors.values())), dict(tensors)
    for name, given in spare.items():
        if isinstance(given, Tensor):
            found[name] = given.to(like.dtype)
        elif isinstance(given, str):
            found[name] = tensors[given].clone()
        else:
            found[name] = like.new_zeros(given)
    return found


def write_weights(rules: list[Rule], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their tensors, from ours."""
    found: dict[str, Tensor] = {}
    for rule in rules:
        found |= {
            name: tensor.contiguous() for name, tensor in rule.write(weights[rule.ours]).items()
        }
    return found
