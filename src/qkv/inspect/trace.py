"""A trace: every quantity of one pass under the notes' names, computed when it is asked for.

trace = qkv.load("runs/demo").trace("我爱你")
trace["encoder.0.self_attention.weights"]      # (B, H, S, S), tokens in trace.labels(…)
trace.get("decoder.1.cross_attention.weights", head=2)
trace.silence("decoder.1.cross_attention", head=2)["probabilities"]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qkv.config import DecodeConfig
from qkv.config.fields import from_mapping
from qkv.errors import UserError
from qkv.inspect.changing import To, edit_of, part_of
from qkv.inspect.notation import BY_HEAD, Quantity, quantities, sizes
from qkv.inspect.outputs import loss, probabilities
from qkv.inspect.probe import Ask, Edit, Probe, run
from qkv.inspect.reading import Reading, Side
from qkv.model import Decoder, Model, pool

if TYPE_CHECKING:
    from qkv.inspect.attention_maps import AttentionMaps
    from qkv.inspect.attribution import Attribution, Method
    from qkv.inspect.compare import Comparison
    from qkv.inspect.drift import Drift
    from qkv.inspect.lens import Lens
    from qkv.inspect.saved import SavedTrace
    from qkv.inspect.steps import Step
    from qkv.inspect.tree import BeamTree

AFTERWARDS = ("probabilities", "loss")  # made of the logits, outside the model


class Trace:
    """One pass of a model, open to look into.

    A quantity is computed at the first question for it, as far into the model as it stands, and
    kept; `forget` lets go of all that is kept. The model must stay as it is meanwhile.
    """

    def __init__(self, model: Model, reading: Reading, edits: Sequence[Edit] = ()) -> None:
        model = getattr(model, "_orig_mod", model)  # hooks are not seen by compiled code
        self.model, self.reading, self.edits = model, reading, tuple(edits)
        self.quantities: dict[str, Quantity] = quantities(model.config, reading)
        self.sizes = sizes(model.config, reading)
        self._kept: dict[Ask, Tensor] = {}

    def keys(self, pattern: str = "*") -> list[str]:
        """Names of quantities, in the order of the formulas; `*` in a pattern stands for any."""
        return [key for key in self.quantities if fnmatchcase(key, pattern)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.quantities)

    def __len__(self) -> int:
        return len(self.quantities)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._own_name(key) in self.quantities

    def __getitem__(self, key: str) -> Tensor:
        return self.get(key)

    def get(self, key: str, head: int | None = None) -> Tensor:
        """A quantity, or one head's part of it, (B, 1, …): only that is computed and kept."""
        return self.many([key], head)[self._find(key).key]

    def many(self, keys: Sequence[str], head: int | None = None) -> dict[str, Tensor]:
        """Several quantities in one pass; names may be patterns, as "*.weights"."""
        found = self._computed(keys, head)
        self._kept.update(found)
        return {ask.key: value for ask, value in found.items()}

    def peek(self, keys: Sequence[str], head: int | None = None) -> dict[str, Tensor]:
        """As `many`, but nothing is kept: for those who look through a large model in parts."""
        return {ask.key: value for ask, value in self._computed(keys, head).items()}

    def forget(self) -> None:
        """Let go of every value that is kept; it is computed again when it is asked for."""
        self._kept.clear()

    def axes(self, key: str) -> tuple[str, ...]:
        """The letters of a quantity's dimensions, as the notation has them."""
        return self._find(key).axes

    def shape(self, key: str) -> tuple[int, ...]:
        """A quantity's shape, known before it is computed."""
        return tuple(self.sizes[letter] for letter in self.axes(key))

    def formula(self, key: str) -> str:
        """How a quantity is made, in the notes' symbols."""
        return self._find(key).formula

    def tokens(self, side: str = "source", row: int = 0) -> list[str]:
        """The tokens that were read on one side, padding left out."""
        return list(self._side(side).names_of(self._row(row)))

    def labels(self, key: str, row: int = 0) -> tuple[list[str] | None, ...]:
        """What stands along each dimension of a quantity: tokens, heads, outputs, or nothing."""
        return tuple(self._along(letter, row) for letter in self.axes(key))

    # What changes on the way ---------------------------------------------------------------------

    def change(
        self,
        key: str,
        to: To,
        *,
        head: int | None = None,
        positions: Sequence[int] | None = None,
    ) -> Trace:
        """The pass in which a quantity is another one: all that comes after it sees the change.

        `to` is a value, or a function of the value that was there; with `head` or `positions` (of
        tokens) it is about that part alone.
        """
        quantity = self._find(key)
        if self._outside(quantity.key):
            raise UserError(
                f"{quantity.key} cannot be changed on the way; change the text, or a quantity "
                f"inside the model."
            )
        self._check_bias(quantity)
        self._ask(quantity.key, head)
        part = part_of(quantity, head, positions, self.sizes)
        return Trace(self.model, self.reading, [*self.edits, edit_of(quantity, to, part)])

    def silence(self, key: str, head: int | None = None) -> Trace:
        """The pass without one head, a whole attention, or any quantity: it is 0.

        An attention's name, as "encoder.0.self_attention", means what its heads give.
        """
        if f"{key}.heads" in self.quantities:
            key = f"{key}.heads"
        elif f"{key}.output" in self.quantities and head is None:
            key = f"{key}.output"
        return self.change(key, torch.zeros_like, head=head)

    def patch(
        self,
        other: Trace,
        key: str,
        *,
        head: int | None = None,
        positions: Sequence[int] | None = None,
    ) -> Trace:
        """This pass with a quantity taken out of another one (activation patching)."""
        value = other[key]
        if tuple(value.shape) != self.shape(key):
            raise UserError(
                f"{key} has the shape {tuple(value.shape)} in the other trace and "
                f"{self.shape(key)} in this one; compare texts with as many tokens, or patch "
                f"through `change`."
            )
        part = part_of(self._find(key), head, positions, self.sizes)
        return self.change(key, value[part], head=head, positions=positions)

    # What it says --------------------------------------------------------------------------------

    def maps(
        self,
        kind: str | None = None,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        row: int = 0,
    ) -> AttentionMaps:
        """Attention maps of one kind, as "encoder.self_attention", that draw themselves."""
        from qkv.inspect.attention_maps import attention_maps

        return attention_maps(self, kind, layers, heads, self._row(row))

    def steps(self, k: int = 5, row: int = 0) -> list[Step]:
        """How each step of the output went: its best candidates, their probabilities, entropy."""
        from qkv.inspect.steps import steps

        return steps(self, k, self._row(row))

    def lens(self, k: int = 1, stack: str | None = None, row: int = 0) -> Lens:
        """What each layer would predict if it were the last (logit lens)."""
        from qkv.inspect.lens import lens

        return lens(self, k, stack, self._row(row))

    def drift(self, stack: str | None = None, row: int = 0) -> Drift:
        """How far the residual stream has moved from its input, layer by layer."""
        from qkv.inspect.drift import drift

        return drift(self, stack, self._row(row))

    def rollout(self, stack: str | None = None, row: int = 0) -> Tensor:
        """How much of each input token attention hands on to each output token, (T, S).

        It multiplies attention maps and knows nothing of values and feed-forward layers;
        `attribution` is the sounder answer.
        """
        from qkv.inspect.rollout import rollout

        return rollout(self, stack, self._row(row))

    def attribution(
        self,
        positions: int | Sequence[int] | None = None,
        output: int | None = None,
        row: int = 0,
        method: Method = "integrated",
        steps: int = 32,
    ) -> Attribution:
        """Which tokens the outputs (all, or those at `positions`) leaned on.

        By integrated gradients, or by the cheaper gradient × input, which is often wrong where
        there are norms.
        """
        from qkv.inspect.attribution import attribution

        return attribution(self, positions, output, self._row(row), method, steps)

    def beam_tree(self, row: int = 0, **settings: Any) -> BeamTree:
        """The tree of a beam search after what was read: what was kept, what pruned, and why.

        `settings` are those of `DecodeConfig`; by default as the model decodes, with 2 beams at
        least.
        """
        from qkv.inspect.tree import beam_tree

        given = dataclasses.asdict(self.reading.decode) | {"n_best": 1} | settings
        return beam_tree(self, from_mapping(DecodeConfig, given, "decode"), self._row(row))

    def compare(self, other: Trace | SavedTrace, pattern: str = "*") -> Comparison:
        """How each quantity differs from another trace's: another model, text or moment."""
        from qkv.inspect.compare import compare

        return compare(self, other, pattern)

    def save(self, path: str | Path, pattern: str | Sequence[str] = "*") -> Path:
        """Write quantities to PATH.npz and what they are to PATH.json; the first's path."""
        from qkv.inspect.saved import save

        return save(self, Path(path), [pattern] if isinstance(pattern, str) else pattern)

    def _repr_html_(self) -> str:
        from qkv.inspect.views import trace_fragment

        return trace_fragment(self)

    def __repr__(self) -> str:
        letters = ", ".join(f"{x}={self.sizes[x]}" for x in "BSTDH" if self.sizes[x])
        edited = f", changed: {len(self.edits)}" if self.edits else ""
        return f"<Trace of {len(self)} quantities: {letters}{edited}>"

    # How it is found -----------------------------------------------------------------------------

    def _own_name(self, key: str) -> str:
        """A decoder alone reads one text, which may be called its source as well."""
        if isinstance(self.model, Decoder) and key.startswith("source."):
            return key.replace("source.", "target.", 1)
        return key

    def _find(self, key: str) -> Quantity:
        name = self._own_name(key)
        if name not in self.quantities:
            near = get_close_matches(name, self.quantities, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "see trace.keys()."
            raise UserError(f"This trace has no quantity {key!r}; {hint}")
        return self.quantities[name]

    def _matching(self, key: str) -> list[str]:
        if "*" not in key:
            return [self._find(key).key]
        found = self.keys(self._own_name(key))
        if not found:
            raise UserError(f"This trace has no quantity like {key!r}; see trace.keys().")
        return found

    def _ask(self, key: str, head: int | None) -> Ask:
        if head is None:
            return Ask(key)
        quantity = self.quantities[key]
        if quantity.part not in BY_HEAD:
            raise UserError(f"{key} has no heads; ask for it without one.")
        n_heads = self.sizes[quantity.axes[1]]
        if not 0 <= head < n_heads:
            raise UserError(f"{key}: head {head} is not among its {n_heads}, 0 to {n_heads - 1}.")
        return Ask(key, head)

    def _computed(self, keys: Sequence[str], head: int | None) -> dict[Ask, Tensor]:
        names = [name for key in keys for name in self._matching(key)]
        asks = list(dict.fromkeys(self._ask(name, head) for name in names))
        inside = [Ask(one) for ask in asks for one in self._made_of(ask.key)]
        inside += [ask for ask in asks if not self._outside(ask.key)]
        wanted = [ask for ask in dict.fromkeys(inside) if ask not in self._kept]
        known = dict(self._kept)
        if wanted:
            probe = Probe(wanted, self.edits)
            with torch.no_grad():
                run(self.model, self.reading, probe)
            known.update(probe.found)
        return {ask: known[ask] if ask in known else self._made(ask.key, known) for ask in asks}

    def _outside(self, key: str) -> bool:
        """Whether a quantity is known without the model, or made of what the model gives."""
        return bool(self._made_of(key)) or key.endswith((".tokens", ".labels"))

    def _made_of(self, key: str) -> tuple[str, ...]:
        if key in AFTERWARDS:
            return ("logits",)
        own_pooling = key == "pooled" and self.model.config.head == "none"
        return ("encoder.output",) if own_pooling else ()

    def _made(self, key: str, known: dict[Ask, Tensor]) -> Tensor:
        reading = self.reading
        if key == "probabilities":
            return probabilities(known[Ask("logits")].float(), reading)
        if key == "loss":
            assert reading.labels is not None
            return loss(known[Ask("logits")].float(), reading.labels, reading)
        if key == "pooled":
            assert reading.source is not None
            return pool(known[Ask("encoder.output")], reading.source.layout, reading.pooling)
        if key == "target.labels":
            assert reading.labels is not None
            return reading.labels.clone()
        return self._side(key.partition(".")[0]).tokens.clone()

    def _side(self, side: str) -> Side:
        found = {"source": self.reading.source, "target": self.reading.target}.get(side)
        if found is None and isinstance(self.model, Decoder):
            found = self.reading.target
        if found is None:
            raise UserError(f"This trace has no {side}.")
        return found

    def _row(self, row: int) -> int:
        count = self.reading.n_rows
        if not -count <= row < count:
            raise UserError(f"There is no row {row}: this trace has {count}, from 0 on.")
        return row % count

    def _check_bias(self, quantity: Quantity) -> None:
        """Disentangled positions look at queries and keys before anybody can change them."""
        looks = quantity.key.endswith(("self_attention.query", "self_attention.key"))
        if looks and self.model.config.positions == "disentangled":
            raise UserError(
                f"{quantity.key} also makes this model's position bias, which a change would not "
                f"reach; change the scores instead."
            )

    def _along(self, letter: str, row: int) -> list[str] | None:
        if letter in ("S", "T"):
            return list(self._side("source" if letter == "S" else "target").names[self._row(row)])
        if letter in ("H", "G"):
            return [f"head {head}" for head in range(self.sizes[letter])]
        if letter in ("V", "C"):
            return self.reading.name(range(self.sizes[letter]))
        return None
