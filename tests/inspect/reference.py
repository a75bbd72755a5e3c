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
            memory = self._stack("encoder", "source", inputs.source, False, None)
        if inputs.target is not None:
            self._stack("decoder", "target", inputs.target, True, memory)
        self._say()

    def _linear(self, name: str, x: Tensor, rows: slice = slice(None)) -> Tensor:
        y = x @ self.weights[f"{name}.weight"][rows].T
        bias = self.weights.get(f"{name}.bias")
        return y if bias is None else y + bias[rows]

    def _norm(self, name: str, x: Tensor) -> Tensor:
        if self.config.norm == "rms":
            x = x / (x.pow(2).mean(-1, keepdim=True) + self.config.norm_epsilon).sqrt()
            return x * self.weights[f"{name}.weight"]
        centred = x - x.mean(-1, keepdim=True)
        x = centred / (centred.pow(2).mean(-1, keepdim=True) + self.config.norm_epsilon).sqrt()
        return x * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def _stack(self, name: str, side: str, read, causal: bool, memory: Tensor | None) -> Tensor:
        config, found = self.config, self.found
        found[f"{side}.tokens"] = read.tokens
        x = self._embedded(side, read.tokens)
        found[f"{side}.embedding"] = x
        x = x + self._positions(name, x.shape[1])
        if config.embedding_norm:
            x = self._norm(f"{name}.input_norm", x)
        found[f"{side}.input"] = x
        lengths = read.layout.lengths
        seen = [x.shape[1]] * len(x) if lengths is None else lengths.tolist()
        layers = config.n_encoder_layers if name == "encoder" else config.n_decoder_layers
        for layer in range(layers):
            x = self._block(f"{name}.{layer}", f"{name}.blocks.{layer}", x, seen, causal, memory)
        if config.norm_position == "pre":
            x = self._norm(f"{name}.norm", x)
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
        x = table[tokens] * (math.sqrt(config.d_model) if config.embedding_scale else 1.0)
        if config.n_segments:
            x = x + self.weights["segments.weight"][self.inputs.segments]
        return x

    def _positions(self, name: str, length: int) -> Tensor:
        config = self.config
        if config.positions == "learned":
            return self.weights[f"{name}.positions.table.weight"][:length]
        table = torch.zeros(length, config.d_model, dtype=torch.float64)
        if config.positions == "sinusoidal":
            for place in range(length):
                for i in range(config.d_model):
                    angle = place / 10000 ** (2 * (i // 2) / config.d_model)
                    table[place, i] = math.cos(angle) if i % 2 else math.sin(angle)
        return table

    def _wrap(self, key: str, norm: str, x: Tensor, sublayer) -> Tensor:
        if self.config.norm_position == "pre":
            x = x + sublayer(self._norm(f"{norm}.norm", x))
        else:
            x = self._norm(f"{norm}.norm", x + sublayer(x))
        self.found[f"{key}.residual"] = x
        return x

    def _source_lengths(self) -> list[int]:
        source = self.inputs.source
        lengths = source.layout.lengths
        return [source.length] * len(source.tokens) if lengths is None else lengths.tolist()

    def _attend(self, key, name, x, memory, lengths, causal) -> Tensor:
        config, found, width = self.config, self.found, self.config.d_head
        n_heads, n_groups = config.n_heads, config.kv_heads
        ends = [n_heads * width, (n_heads + n_groups) * width, (n_heads + 2 * n_groups) * width]
        if memory is None:
            fused = f"{name}.query_key_value"
            q = self._linear(fused, x, slice(0, ends[0]))
            k = self._linear(fused, x, slice(ends[0], ends[1]))
            v = self._linear(fused, x, slice(ends[1], ends[2]))
        else:
            half = n_groups * width
            q = self._linear(f"{name}.query", x)
            k = self._linear(f"{name}.key_value", memory, slice(0, half))
            v = self._linear(f"{name}.key_value", memory, slice(half, 2 * half))
        q = self._turned([q[..., h * width : (h + 1) * width] for h in range(n_heads)])
        k = self._turned([k[..., h * width : (h + 1) * width] for h in range(n_groups)])
        v = [v[..., h * width : (h + 1) * width] for h in range(n_groups)]
        every_score, every_weight, every_head = [], [], []
        for h in range(n_heads):
            g = h // (n_heads // n_groups)
            score = torch.full((len(x), x.shape[1], k[g].shape[1]), -math.inf).double()
            for b in range(len(x)):
                for t in range(x.shape[1]):
                    limit = t + 1 if causal else lengths[b]
                    for s in range(min(limit, k[g].shape[1])):
                        score[b, t, s] = (q[h][b, t] * k[g][b, s]).sum() / math.sqrt(width)
            every_score.append(score)
            every_weight.append(score.exp() / score.exp().sum(-1, keepdim=True))
            every_head.append(every_weight[-1] @ v[g])
        values = {
            "query": q,
            "key": k,
            "value": v,
            "scores": every_score,
            "weights": every_weight,
            "heads": every_head,
        }
        found.update({f"{key}.{part}": torch.stack(one, dim=1) for part, one in values.items()})
        found[f"{key}.output"] = self._linear(f"{name}.output", torch.cat(every_head, dim=-1))
        return found[f"{key}.output"]

    def _turned(self, heads: list[Tensor]) -> list[Tensor]:
        if self.config.positions != "rotary":
            return heads
        half = self.config.d_head // 2
        turned = []
        for x in heads:
            y = torch.empty_like(x)
            for place in range(x.shape[1]):
                for i in range(half):
                    angle = place / self.config.rotary_base ** (i / half)
                    a, b = x[:, place, i], x[:, place, i + half]
                    y[:, place, i] = a * math.cos(angle) - b * math.sin(angle)
                    y[:, place, i + half] = b * math.cos(angle) + a * math.sin(angle)
            turned.append(y)
        return turned

    def _feed(self, key: str, name: str, x: Tensor) -> Tensor:
        inner = self._linear(f"{name}.inner", x)
        act = ACTIVATIONS[self.config.activation]
        if self.config.gated:
            inner = act(inner[..., : self.config.d_ff]) * inner[..., self.config.d_ff :]
        else:
            inner = act(inner)
        self.found[f"{key}.hidden"] = inner
        self.found[f"{key}.output"] = self._linear(f"{name}.outer", inner)
        return self.found[f"{key}.output"]

    def _say(self) -> None:
        found, config = self.found, self.config
        if config.family == "encoder":
            found["pooled"] = found["encoder.output"][:, 0]
            found["logits"] = self._linear("head.projection", found["pooled"])
        else:
            table = self.weights.get("output.projection.weight")
            if table is None:
                one = "target_embedding" if config.family == "encoder-decoder" else "embedding"
                table = self.weights.get(f"{one}.table.weight")
            if table is None:
                table = self.weights["source_embedding.table.weight"]
            found["logits"] = found["decoder.output"] @ table.T
        labels = self.inputs.labels
        found["probabilities"] = found["logits"].softmax(-1)
        found["target.labels"] = labels
        asked = labels != IGNORE
        chosen = found["probabilities"].gather(-1, labels.clamp(min=0)[..., None])[..., 0]
        found["loss"] = -chosen[asked].log().mean()
