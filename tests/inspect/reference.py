"""The three families written out once more in float64, head by head, from the weights alone.

Nothing of qkv.model runs here: no mask object, no position scheme, no fused projection.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from qkv.config import ModelConfig
from qkv.inspect import IGNORE, Inputs

Found = dict[str, Tensor]
ACTIVATIONS = {
    "relu": lambda z: z.clamp(min=0),
    "silu": lambda z: z / (1 + (-z).exp()),
    "gelu": lambda z: z * (1 + torch.erf(z / math.sqrt(2))) / 2,
}


class Reference:
    """Every quantity of a pass by its name, in `found`."""

    def __init__(self, config: ModelConfig, weights: dict[str, Tensor], inputs: Inputs) -> None:
        self.config, self.inputs = config, inputs
        self.weights = {name: value.detach().double() for name, value in weights.items()}
        self.found: Found = {}
        memory = None
        if inputs.source is not None:
            memory = self._stack("encoder", "source", inputs.source, config.causal, None)
        if inputs.target is not None:
            self._stack("decoder", "target", inputs.target, True, memory)
        self._say()

    def _linear(self, name: str, x: Tensor, rows: slice = slice(None)) -> Tensor:
        y = x @ self.weights[f"{name}.weight"][rows].T
        bias = self.weights.get(f"{name}.bias")
        return y if bias is None else y + bias[rows]

    def _keep_linear(self, name: str, weight: str, bias: str, rows: slice = slice(None)) -> None:
        """Note the weights of a linear layer as (in, out)."""
        self.found[weight] = self.weights[f"{name}.weight"][rows].T
        if f"{name}.bias" in self.weights:
            self.found[bias] = self.weights[f"{name}.bias"][rows]

    def _norm(self, key: str, name: str, x: Tensor) -> Tensor:
        found, config = self.found, self.config
        found[f"{key}.gamma"] = self.weights[f"{name}.weight"] + (config.norm == "rms_plus_one")
        if config.norm == "layer":
            found[f"{key}.mean"] = x.mean(-1, keepdim=True)
            x = x - found[f"{key}.mean"]
        found[f"{key}.deviation"] = (x.pow(2).mean(-1, keepdim=True) + config.norm_epsilon).sqrt()
        found[f"{key}.normalised"] = x / found[f"{key}.deviation"]
        x = found[f"{key}.normalised"] * found[f"{key}.gamma"]
        if config.norm != "layer":
            return x
        found[f"{key}.beta"] = self.weights[f"{name}.bias"]
        return x + found[f"{key}.beta"]

    def _stack(self, name: str, side: str, read, causal: bool, memory: Tensor | None) -> Tensor:
        config, found = self.config, self.found
        found[f"{side}.tokens"] = read.tokens
        x = self._embedded(side, read.tokens)
        found[f"{side}.embedding"] = x
        if config.positions in ("sinusoidal", "learned"):
            found[f"{side}.positions"] = self._positions(name, side, x.shape[1])
            x = x + found[f"{side}.positions"]
            if config.embedding_norm:
                found[f"{side}.sum"] = x
        if config.embedding_norm:
            x = self._norm(f"{side}.norm", f"{name}.input_norm", x)
        found[f"{side}.input"] = x
        lengths = read.layout.lengths
        seen = [x.shape[1]] * len(x) if lengths is None else lengths.tolist()
        layers = config.n_encoder_layers if name == "encoder" else config.n_decoder_layers
        for layer in range(layers):
            x = self._block(f"{name}.{layer}", f"{name}.blocks.{layer}", x, seen, causal, memory)
        if config.norm_position != "post":
            x = self._norm(f"{name}.norm", f"{name}.norm", x)
        found[f"{name}.output"] = x
        return x

    def _block(self, at: str, block: str, x: Tensor, seen, causal: bool, memory) -> Tensor:
        def own(h: Tensor) -> Tensor:
            names = f"{at}.self_attention", f"{block}.self_attention"
            return self._attend(*names, h, None, seen, causal)

        def across(h: Tensor) -> Tensor:
            names = f"{at}.cross_attention", f"{block}.cross_attention"
            return self._attend(*names, h, memory, self._source_lengths(), False)

        def feed(h: Tensor) -> Tensor:
            return self._feed(f"{at}.feed_forward", f"{block}.feed_forward", h)

        subs = {"self_attention": own, "cross_attention": across, "feed_forward": feed}
        for name, sublayer in subs.items():
            if name != "cross_attention" or memory is not None:
                x = self._wrap(f"{at}.{name}", f"{block}.{name}_residual", x, sublayer)
        return x

    def _embedded(self, side: str, tokens: Tensor) -> Tensor:
        config = self.config
        name = {"encoder-decoder": f"{side}_embedding"}.get(config.family, "embedding")
        table = self.weights.get(f"{name}.table.weight")
        if table is None:  # one table serves both sides
            table = self.weights["source_embedding.table.weight"]
        self.found[f"{side}.E"] = table
        x = table[tokens] * (math.sqrt(config.d_model) if config.embedding_scale else 1.0)
        if config.n_segments:
            self.found[f"{side}.segment_table"] = self.weights["segments.weight"]
            x = x + self.weights["segments.weight"][self.inputs.segments]
        return x

    def _positions(self, name: str, side: str, length: int) -> Tensor:
        config = self.config
        if config.positions == "learned":
            self.found[f"{side}.position_table"] = self.weights[f"{name}.positions.table.weight"]
            return self.weights[f"{name}.positions.table.weight"][:length]
        table = torch.zeros(length, config.d_model, dtype=torch.float64)
        for place in range(length):
            for i in range(config.d_model):
                angle = place / 10000 ** (2 * (i // 2) / config.d_model)
                table[place, i] = math.cos(angle) if i % 2 else math.sin(angle)
        return table

    def _wrap(self, key: str, norm: str, x: Tensor, sublayer) -> Tensor:
        found, where = self.found, self.config.norm_position
        found[f"{key}.skip"] = x
        if where == "post":
            found[f"{key}.sum"] = x + sublayer(x)
            x = self._norm(f"{key}.norm", f"{norm}.norm", found[f"{key}.sum"])
        else:
            found[f"{key}.norm"] = self._norm(f"{key}.norm", f"{norm}.norm", x)
            added = sublayer(found[f"{key}.norm"])
            if where == "both":
                added = self._norm(f"{key}.output_norm", f"{norm}.output_norm", added)
                found[f"{key}.output_norm"] = added
            x = x + added
        found[f"{key}.residual"] = x
        return x

    def _source_lengths(self) -> list[int]:
        source = self.inputs.source
        lengths = source.layout.lengths
        return [source.length] * len(source.tokens) if lengths is None else lengths.tolist()

    def _attend(self, key, name, x, memory, lengths, causal) -> Tensor:
        config, found, width = self.config, self.found, self.config.d_head
        n_heads, n_groups = config.n_heads, config.kv_heads
        ends = [n_heads * width, (n_heads + n_groups) * width, (n_heads + 2 * n_groups) * width]
        rows = [slice(0, ends[0]), slice(ends[0], ends[1]), slice(ends[1], ends[2])]
        layers = [f"{name}.query_key_value"] * 3
        if memory is not None:
            half = n_groups * width
            rows = [slice(0, ends[0]), slice(0, half), slice(half, 2 * half)]
            layers = [f"{name}.query", f"{name}.key_value", f"{name}.key_value"]
        for letter, layer, part in zip("QKV", layers, rows, strict=True):
            self._keep_linear(layer, f"{key}.W_{letter}", f"{key}.b_{letter}", part)
        read = [x, x if memory is None else memory, x if memory is None else memory]
        q, k, v = (self._linear(*three) for three in zip(layers, read, rows, strict=True))
        q = [q[..., h * width : (h + 1) * width] for h in range(n_heads)]
        k = [k[..., h * width : (h + 1) * width] for h in range(n_groups)]
        v = [v[..., h * width : (h + 1) * width] for h in range(n_groups)]
        if config.positions == "rotary" and memory is None:
            angles = found[f"{key}.rotation"] = self._angles(x.shape[1])
            q, k = self._turned(q, angles), self._turned(k, angles)
        root = math.sqrt(config.score_divisor or width) if config.score_division else 1.0
        if config.positions == "disentangled":
            root = math.sqrt(3 * width)
        mask = self._mask(x, k[0].shape[1], lengths, causal)
        found[f"{key}.scale"], found[f"{key}.mask"] = torch.tensor(root).double(), mask
        bias = self._bias(key, name, q, k, root, causal) if memory is None else None
        steps: dict[str, list[Tensor]] = {"products": [], "scores": [], "weights": [], "heads": []}
        for h in range(n_heads):
            g = h // (n_heads // n_groups)
            products = torch.stack([one @ other.T for one, other in zip(q[h], k[g], strict=True)])
            score, cap = products / root, config.score_cap
            score = cap * (score / cap).tanh() if cap else score
            score = score + (0 if bias is None else bias[:, h]) + mask[:, 0]
            mixed = score.exp() / score.exp().sum(-1, keepdim=True)
            for step, value in zip(steps, (products, score, mixed, mixed @ v[g]), strict=True):
                steps[step].append(value)
        values = {"query": q, "key": k, "value": v, **steps}
        found.update({f"{key}.{part}": torch.stack(one, dim=1) for part, one in values.items()})
        self._keep_linear(f"{name}.output", f"{key}.W_O", f"{key}.b_O")
        joined = torch.cat(steps["heads"], dim=-1)
        found[f"{key}.output"] = self._linear(f"{name}.output", joined)
        return found[f"{key}.output"]

    def _mask(self, x: Tensor, n_keys: int, lengths, causal: bool) -> Tensor:
        """0 where a key may be seen, else -∞; rows alike are one."""
        apart = not causal and len({*lengths}) > 1
        mask = torch.zeros(len(x) if apart else 1, 1, x.shape[1], n_keys).double()
        for b, t, s in torch.cartesian_prod(*map(torch.arange, (len(mask), x.shape[1], n_keys))):
            if s > t if causal else s >= lengths[b]:
                mask[b, 0, t, s] = -math.inf
        return mask

    def _bias(self, key, name, q, k, root: float, causal: bool) -> Tensor | None:
        """T5's number of each distance, or DeBERTa's products with vectors of distances."""
        config, found, n_tokens = self.config, self.found, q[0].shape[1]
        stack = key.partition(".")[0]
        pairs = [(t, s) for t in range(n_tokens) for s in range(n_tokens)]
        if config.positions == "relative":
            table = self.weights[f"{stack}.positions.table.weight"]
            found[f"{stack}.bias_table"] = table
            bias = torch.zeros(1, config.n_heads, n_tokens, n_tokens).double()
            for t, s in pairs:
                bias[0, :, t, s] = table[bucket(s - t, causal, config)]
        elif config.positions == "disentangled":
            table = self.weights[f"{stack}.positions.table.weight"]
            found[f"{stack}.distance_table"] = table
            before = {*found}
            vectors = self._norm("distances", f"{stack}.positions.norm", table)
            for step in {*found} - before:
                value = found.pop(step)
                if step.endswith(("gamma", "beta")):
                    found[step.replace("distances", f"{stack}.distance_norm")] = value
            bias = torch.zeros(len(q[0]), len(q), n_tokens, n_tokens).double()
            n, width = config.relative_buckets, config.d_head
            fused, size = f"{name}.query_key_value", len(q) * width
            relative_q = self._linear(fused, vectors, slice(0, size))
            relative_k = self._linear(fused, vectors, slice(size, 2 * size))
            for t, s in pairs:
                distance = n + max(-n, min(n - 1, t - s))  # each has a bucket of its own
                for h in range(len(q)):
                    part = slice(h * width, (h + 1) * width)
                    bias[:, h, t, s] = (
                        q[h][:, t] @ relative_k[distance, part]
                        + k[h][:, s] @ relative_q[distance, part]
                    ) / root
        else:
            return None
        found[f"{key}.bias"] = bias
        return bias

    def _angles(self, length: int) -> Tensor:
        half = self.config.d_head // 2
        base = self.config.rotary_base
        return torch.tensor(
            [
                [math.remainder(place / base ** (i / half), 2 * math.pi) for i in range(half)]
                for place in range(length)
            ]
        ).double()

    def _turned(self, heads: list[Tensor], angles: Tensor) -> list[Tensor]:
        half = angles.shape[1]
        turned = []
        for x in heads:
            y = torch.empty_like(x)
            for place in range(x.shape[1]):
                for i in range(half):
                    angle = float(angles[place, i])
                    a, b = x[:, place, i], x[:, place, i + half]
                    y[:, place, i] = a * math.cos(angle) - b * math.sin(angle)
                    y[:, place, i + half] = b * math.cos(angle) + a * math.sin(angle)
            turned.append(y)
        return turned

    def _feed(self, key: str, name: str, x: Tensor) -> Tensor:
        found, width = self.found, self.config.d_ff
        act = ACTIVATIONS[self.config.activation]
        if self.config.gated:
            gate, plain = slice(0, width), slice(width, 2 * width)
            found[f"{key}.gate"] = self._linear(f"{name}.inner", x, gate)
            found[f"{key}.inner"] = self._linear(f"{name}.inner", x, plain)
            found[f"{key}.hidden"] = act(found[f"{key}.gate"]) * found[f"{key}.inner"]
            self._keep_linear(f"{name}.inner", f"{key}.W_gate", f"{key}.b_gate", gate)
            self._keep_linear(f"{name}.inner", f"{key}.W_1", f"{key}.b_1", plain)
        else:
            found[f"{key}.inner"] = self._linear(f"{name}.inner", x)
            found[f"{key}.hidden"] = act(found[f"{key}.inner"])
            self._keep_linear(f"{name}.inner", f"{key}.W_1", f"{key}.b_1")
        self._keep_linear(f"{name}.outer", f"{key}.W_2", f"{key}.b_2")
        found[f"{key}.output"] = self._linear(f"{name}.outer", found[f"{key}.hidden"])
        return found[f"{key}.output"]

    def _say(self) -> None:
        found, config = self.found, self.config
        if config.family == "encoder":
            found["pooled"] = found["encoder.output"][:, 0]
            found["logits"] = self._linear("head.projection", found["pooled"])
            self._keep_linear("head.projection", "W_out", "b_out")
        else:
            table = self.weights.get("output.projection.weight")
            found["W_out"] = (found["target.E"] if table is None else table).T
            scale = config.d_model**-0.5 if config.output_scale else 1.0
            found["logits"] = found["decoder.output"] * scale @ found["W_out"]
            cap = config.logit_cap
            found["logits"] = cap * (found["logits"] / cap).tanh() if cap else found["logits"]
        labels = self.inputs.labels
        found["probabilities"] = found["logits"].softmax(-1)
        found["target.labels"] = labels
        asked = labels != IGNORE
        chosen = found["probabilities"].gather(-1, labels.clamp(min=0)[..., None])[..., 0]
        found["target.log_probabilities"] = chosen.log().where(asked, 0.0)
        found["loss"] = -chosen[asked].log().mean()


def bucket(apart: int, causal: bool, config: ModelConfig) -> int:
    """T5's bucket of a distance that has one of its own, behind (and ahead) of a token."""
    size, side = abs(apart), 0 if causal else config.relative_buckets // 2
    exact = (side or config.relative_buckets) // 2
    assert size < exact or causal, "distances with a bucket of their own"
    if causal:
        return min(max(-apart, 0), exact - 1)
    return size + side * (apart > 0)
