"""A trace: every quantity of one pass by its key in the notation, computed when asked for.

trace = qkv.load("runs/demo").trace("我爱你")
trace["encoder.0.self_attention.weights"]      # (B, H, S, S), tokens in trace.labels(…)
trace.get("decoder.1.cross_attention.weights", head=2)
trace.silence("decoder.1.cross_attention", head=2)["probabilities"]
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qkv.config import DecodeConfig
from qkv.config.fields import from_mapping
from qkv.errors import UserError
from qkv.inspect.trace.aliases import aliases, spelled
from qkv.inspect.trace.edit import Edit, Replacement, part_index, replace_part
from qkv.inspect.trace.gradients import gradients, lack_of_gradient
from qkv.inspect.trace.hooks import run
from qkv.inspect.trace.inputs import Inputs, Side
from qkv.inspect.trace.notation import GRADIENT, Quantities, Quantity, sizes
from qkv.inspect.trace.quantities import pass_quantities
from qkv.inspect.trace.taps import Ask, Probe
from qkv.inspect.trace.weights import weight_quantities
from qkv.model import Decoder, Model

if TYPE_CHECKING:
    from qkv.inspect.answers.attention import AttentionMaps
    from qkv.inspect.answers.attribution import Attribution, Method
    from qkv.inspect.answers.beam_tree import BeamTree, LogitsAfter
    from qkv.inspect.answers.drift import Drift
    from qkv.inspect.answers.lens import Lens
    from qkv.inspect.answers.steps import Steps

MAX_AT_ONCE = 2**26  # numbers that one pass hands out to a question about all layers
MAX_KEPT_GRADIENTS = 2**24  # numbers that one backward pass keeps for later questions


class Trace(Quantities):
    """One pass of a model, open to look into.

    A quantity is computed when it is first asked for, running the model only as far as needed, and
    kept; `forget` drops all kept values. Do not change the model's weights meanwhile.
    """

    def __init__(self, model: Model, inputs: Inputs, edits: Sequence[Edit] = ()) -> None:
        model = getattr(model, "_orig_mod", model)  # compiled code does not call hooks
        self.model, self.inputs, self.edits = model, inputs, tuple(edits)
        listed = {**pass_quantities(model.config, inputs), **weight_quantities(model)}
        super().__init__(listed, sizes(model.config, inputs))
        self._kept: dict[Ask, Tensor] = {}
        self._aliases = {spelled(symbol): key for symbol, key in aliases(listed).items()}

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, str):
            return False
        quantity = self.quantities.get(self._own_key(key.removeprefix(GRADIENT)))
        if quantity is None or not key.startswith(GRADIENT):
            return quantity is not None
        return lack_of_gradient(self, quantity) is None

    def __getitem__(self, key: str) -> Tensor:
        return self.get(key)

    def get(self, key: str, head: int | None = None) -> Tensor:
        """Compute and keep a quantity, or one head of it as (B, 1, …)."""
        return self.many([key], head)[self.find(key).key]

    def many(self, keys: str | Sequence[str], head: int | None = None) -> dict[str, Tensor]:
        """Compute and keep several quantities in one pass; keys may be patterns ("*.weights")."""
        values = self._compute(keys, head, keep=True)
        kept = {ask: x for ask, x in values.items() if not self.find(ask.key).is_weight}
        self._kept.update(kept)
        return {ask.key: value for ask, value in values.items()}

    def peek(self, keys: str | Sequence[str], head: int | None = None) -> dict[str, Tensor]:
        """Compute several quantities in one pass without keeping them (for large models)."""
        return {ask.key: value for ask, value in self._compute(keys, head).items()}

    def each(self, keys: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield quantities one after the other, by as few passes as their sizes allow."""
        together, size = list[str](), 0
        for key in dict.fromkeys(name for given in keys for name in self._matching(given)):
            numbers = math.prod(self.shape(key))
            if together and size + numbers > MAX_AT_ONCE:
                yield from self.peek(together).items()
                together, size = [], 0
            together.append(key)
            size += numbers
        if together:
            yield from self.peek(together).items()

    def names(self, pattern: str | None = None) -> list[str]:
        """Keys in the order of the formulas, as `Quantities.names` finds them by a pattern.

        Every key may follow `gradient.`; those are listed by patterns that begin with it.
        """
        if pattern is None or not pattern.startswith(GRADIENT):
            return super().names(pattern)
        keys = [f"{GRADIENT}{key}" for key in super().names(pattern.removeprefix(GRADIENT))]
        return [key for key in keys if key in self]

    def aliases(self) -> dict[str, str]:
        """The notes' symbols that also name quantities of this trace, each with its key."""
        return aliases(self.quantities)

    def forget(self) -> None:
        """Drop all kept values; they are computed again when asked for."""
        self._kept.clear()

    def tokens(self, side: str = "source", row: int = 0) -> list[str]:
        """Tokens read on one side, without padding."""
        return list(self._side(side).row_names(self.check_row(row)))

    def labels(self, key: str, row: int = 0) -> tuple[list[str] | None, ...]:
        """Names along each dimension of a quantity: tokens, heads, outputs, or None."""
        row = self.check_row(row)

        def along(letter: str) -> list[str] | None:
            if letter in ("S", "T"):
                return list(self._side("source" if letter == "S" else "target").names[row])
            if letter in ("H", "G"):
                return [f"head {head}" for head in range(self.sizes[letter])]
            if letter in ("V", "C"):
                return self.inputs.name(range(self.sizes[letter]))
            return None

        return tuple(map(along, self.axes(key)))

    # Changes -------------------------------------------------------------------------------------

    def change(
        self,
        key: str,
        to: Replacement,
        *,
        head: int | None = None,
        positions: Sequence[int] | None = None,
        keys: Sequence[int] | None = None,
        renormalise: bool = False,
    ) -> Trace:
        """Trace the pass with a quantity replaced; everything computed after it sees the change.

        `to` is a value or a function of the old value; `head`, `positions` (of tokens) and `keys`
        (of the tokens that an attention looks at) limit the change to that part. Weights are taken
        as they are given, unless `renormalise` scales the others of a row to what is left of 1.
        """
        quantity = self.find(key)
        if quantity.key.startswith(GRADIENT) or quantity.is_weight:
            what = "a weight" if quantity.is_weight else "a gradient"
            raise UserError(f"{quantity.key} is {what}; change a quantity of the pass instead.")
        if quantity.make is not None:
            raise UserError(
                f"{quantity.key} is not computed inside the model and cannot be changed; change "
                "the text, or a quantity inside the model."
            )
        if renormalise and not quantity.key.endswith(".weights"):
            raise UserError(f"{quantity.key} does not sum to 1; renormalise attention weights.")
        self._ask(quantity.key, head)
        part = part_index(quantity, head, positions, self.sizes, keys)
        changed = copy.copy(self)  # which lists the same quantities
        changed.edits = (*self.edits, replace_part(quantity, part, to, renormalise))
        changed._kept = {}
        return changed

    def silence(self, key: str, head: int | None = None) -> Trace:
        """Trace the pass with a quantity set to 0: one head, a whole attention, or any other.

        The name of an attention ("encoder.0.self_attention") stands for its heads, that of a layer
        ("encoder.0") for what each of its sublayers adds. Silencing `….mask` lets all tokens be
        seen, `….rotation` switches rotary positions off, `….skip` a residual connection.
        """
        if f"{key}.self_attention.output" in self.quantities and head is None:
            return self._silence_layer(key)
        if key.endswith(".scale"):
            raise UserError(f"{key} divides the products; change it to 1.0 to switch it off.")
        if f"{key}.heads" in self.quantities:
            key = f"{key}.heads"
        elif f"{key}.output" in self.quantities and head is None:
            key = self._added(key)
        return self.change(key, torch.zeros_like, head=head)

    def _silence_layer(self, layer: str) -> Trace:
        outputs = self.names(f"{layer}.*.output")
        added = [self._added(key.removesuffix(".output")) for key in outputs]
        added += self.names(f"{layer}.convolution.inner")
        changed: Trace = self
        for key in added:
            changed = changed.change(key, torch.zeros_like)
        return changed

    def _added(self, sublayer: str) -> str:
        """Key of what a sublayer adds to the stream."""
        normed = f"{sublayer}.output_norm"
        return normed if normed in self.quantities else f"{sublayer}.output"

    def hide(self, positions: int | Sequence[int], side: str | None = None) -> Trace:
        """Trace the pass with tokens of one side hidden: no token looks at them in any layer.

        They do not see themselves either; what they carry themselves stays.
        """
        positions = [positions] if isinstance(positions, int) else list(positions)
        letter = "S" if side != "target" and self.inputs.source is not None else "T"
        self._side(side or ("source" if letter == "S" else "target"))
        masks = [key for key in self.names("*.mask") if self.axes(key)[-1] == letter]
        changed: Trace = self
        for key in masks:
            changed = changed.change(key, float("-inf"), keys=positions)
        return changed

    def patch(
        self,
        other: Trace,
        key: str,
        *,
        head: int | None = None,
        positions: Sequence[int] | None = None,
    ) -> Trace:
        """Trace the pass with a quantity taken from another trace (activation patching).

        With `positions` only those tokens are taken, and the texts may differ in length.
        """
        part = part_index(self.find(key), head, positions, self.sizes)
        taken = other[key][part_index(other.find(key), head, positions, other.sizes)]
        if taken.shape != torch.empty(self.shape(key), device="meta")[part].shape:
            raise UserError(
                f"{key} has the shape {other.shape(key)} in the other trace and "
                f"{self.shape(key)} in this one; compare texts with as many tokens, or patch "
                "with `change`."
            )
        return self.change(key, taken, head=head, positions=positions)

    # Answers -------------------------------------------------------------------------------------

    def maps(
        self,
        kind: str | None = None,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        row: int = 0,
    ) -> AttentionMaps:
        """Attention maps of one kind ("encoder.self_attention"), by default the last one."""
        from qkv.inspect.answers.attention import attention_maps

        return attention_maps(self, kind, layers, heads, self.check_row(row))

    def steps(self, k: int = 5, row: int = 0) -> Steps:
        """The k best candidates of each output, their probabilities, and the entropy."""
        from qkv.inspect.answers.steps import steps

        return steps(self, k, self.check_row(row))

    def lens(self, k: int = 1, stack: str | None = None, row: int = 0) -> Lens:
        """What each layer would predict if it were the last (logit lens)."""
        from qkv.inspect.answers.lens import lens

        return lens(self, k, stack, self.check_row(row))

    def drift(self, stack: str | None = None, row: int = 0) -> Drift:
        """How far the residual stream has moved from its input after each layer."""
        from qkv.inspect.answers.drift import drift

        return drift(self, stack, self.check_row(row))

    def rollout(self, stack: str | None = None, row: int = 0) -> Tensor:
        """Attention maps multiplied through the layers, (T, S).

        Rollout ignores values and feed-forward layers; `attribution` is more reliable.
        """
        from qkv.inspect.answers.rollout import rollout

        return rollout(self, stack, self.check_row(row))

    def attribution(
        self,
        positions: int | Sequence[int] | None = None,
        output: int | None = None,
        row: int = 0,
        method: Method | None = None,
        steps: int | None = None,
    ) -> Attribution:
        """How much each token adds to each output (all, or those at `positions`).

        `method` is "removal" (what the output loses without the token), "integrated" (gradients,
        whose `gap` tells how far they are from adding up), or the cheap "gradient" × input, which
        is often wrong in models with norms. By default removal, where that is affordable.
        """
        from qkv.inspect.answers.attribution import attribution

        return attribution(self, positions, output, self.check_row(row), method, steps)

    def beam_tree(
        self, row: int = 0, logits_after: LogitsAfter | None = None, **settings: Any
    ) -> BeamTree:
        """Search on from the traced inputs and record every candidate, kept or pruned.

        `logits_after` gives the logits after a list of tokens in place of the model, as those of a
        changed pass. `settings` are those of `DecodeConfig`, by default the model's own, with at
        least 2 beams.
        """
        from qkv.inspect.answers.beam_tree import beam_tree

        given = dataclasses.asdict(self.inputs.decode) | {"n_best": 1} | settings
        config = from_mapping(DecodeConfig, given, "decode")
        return beam_tree(self, config, self.check_row(row), logits_after)

    def save(self, path: str | Path, pattern: str | Sequence[str] = "*") -> Path:
        """Write quantities to PATH.npz and their description to PATH.json; returns the former."""
        from qkv.inspect.trace.archive import save

        return save(self, Path(path), [pattern] if isinstance(pattern, str) else pattern)

    def _repr_html_(self) -> str:
        from qkv.inspect.answers.flow import describe

        return str(describe(self))

    def __repr__(self) -> str:
        letters = ", ".join(f"{x}={self.sizes[x]}" for x in "BSTDH" if self.sizes[x])
        edited = f", changed: {len(self.edits)}" if self.edits else ""
        n_quantities = len(self.names("*"))
        n_weights = len(self) - n_quantities
        return f"<Trace of {n_quantities} quantities and {n_weights} weights: {letters}{edited}>"

    # Computation ---------------------------------------------------------------------------------

    def check_row(self, row: int) -> int:
        """Check a row number and count negative ones from the end."""
        count = self.inputs.n_rows
        if not -count <= row < count:
            raise UserError(f"There is no row {row}; this trace has {count}, from 0 on.")
        return row % count

    def find(self, key: str) -> Quantity:
        """The quantity with a key, or with a symbol of the notes."""
        plain = super().find(self._own_key(key.removeprefix(GRADIENT)))
        return plain.gradient if key.startswith(GRADIENT) else plain

    def _own_key(self, key: str) -> str:
        """The one key of a quantity that may be asked for by a symbol.

        The only text of a decoder may also be called its source.
        """
        if isinstance(self.model, Decoder) and key.startswith("source."):
            key = key.replace("source.", "target.", 1)
        return key if key in self.quantities else self._aliases.get(spelled(key), key)

    def _matching(self, key: str) -> list[str]:
        if "*" not in key:
            return [self.find(key).key]
        prefix = GRADIENT if key.startswith(GRADIENT) else ""
        matching = self.names(prefix + self._own_key(key.removeprefix(prefix)))
        if matching:
            return matching
        for plain in super().names(key.removeprefix(GRADIENT)) if prefix else ():
            if lack := lack_of_gradient(self, self.quantities[plain]):
                raise UserError(lack)
        raise UserError(f"This trace has no quantity like {key!r}; see trace.names().")

    def _ask(self, key: str, head: int | None) -> Ask:
        if head is None:
            return Ask(key)
        quantity = self.find(key)
        if not quantity.has_heads:
            raise UserError(f"{key} has no heads; ask for it without one.")
        n_heads = self.sizes[quantity.axes[1]]
        if not 0 <= head < n_heads:
            raise UserError(f"{key} has no head {head}; it has {n_heads}, 0 to {n_heads - 1}.")
        return Ask(key, head)

    def _compute(
        self, keys: str | Sequence[str], head: int | None, keep: bool = False
    ) -> dict[Ask, Tensor]:
        patterns = [keys] if isinstance(keys, str) else keys
        matching = [name for pattern in patterns for name in self._matching(pattern)]
        asks = dict.fromkeys(self._ask(name, head) for name in matching)
        known = dict(self._kept)
        wanted = [ask for ask in asks if ask not in known]
        known.update(self._gradients([ask for ask in wanted if ask.key.startswith(GRADIENT)], keep))
        plain = [ask for ask in wanted if not ask.key.startswith(GRADIENT)]
        known.update(self._inside(plain))
        for ask in plain:
            quantity = self.quantities[ask.key]
            if quantity.make is not None:
                known[ask] = quantity.make(*(known[Ask(key)] for key in quantity.made_of))
        return {ask: known[ask] for ask in asks}

    def _inside(self, asks: Sequence[Ask]) -> dict[Ask, Tensor]:
        """Run the model for what is computed inside of it, as far as it is not kept."""
        inside: dict[Ask, None] = {}
        for ask in asks:
            quantity = self.quantities[ask.key]
            made = quantity.make is not None
            inside.update(dict.fromkeys(map(Ask, quantity.made_of) if made else [ask]))
        wanted = [ask for ask in inside if ask not in self._kept]
        probe = Probe(wanted, self.edits)
        if wanted:
            with torch.no_grad():
                run(self.model, self.inputs, probe)
        return probe.values

    def _gradients(self, asks: Sequence[Ask], keep: bool) -> dict[Ask, Tensor]:
        """Gradients, and with `keep` all others of the same backward pass for later questions."""
        keys = dict.fromkeys(ask.key for ask in asks if Ask(ask.key) not in self._kept)
        found = {ask.key: self._kept[Ask(ask.key)] for ask in asks if ask.key not in keys}
        if keys:
            plain = [key.removeprefix(GRADIENT) for key in keys]
            others = self._few_enough_gradients() if keep else []
            computed = gradients(self, list(dict.fromkeys([*plain, *others])))
            found |= {f"{GRADIENT}{key}": value for key, value in computed.items()}
        if keep:
            self._kept.update({Ask(key): value for key, value in found.items()})
        return {
            ask: found[ask.key]
            if ask.head is None
            else found[ask.key][:, ask.head : ask.head + 1].clone()
            for ask in asks
        }

    def _few_enough_gradients(self) -> list[str]:
        """Keys of all that has a gradient, if kept in memory: of the pass, and of the weights."""
        keys: list[str] = []
        for is_weight in (False, True):
            group = [key for key, x in self.quantities.items() if x.is_weight == is_weight]
            group = [key for key in group if not lack_of_gradient(self, self.quantities[key])]
            if sum(math.prod(self.shape(key)) for key in group) <= MAX_KEPT_GRADIENTS:
                keys += group
        return keys

    def _side(self, name: str) -> Side:
        sides = self.inputs.sides
        side = sides.get(name) or (sides["target"] if isinstance(self.model, Decoder) else None)
        if side is None:
            raise UserError(f"This trace has no {name}.")
        return side
