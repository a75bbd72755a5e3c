"""Feed-forward layers of experts: the sum of what the chosen ones say."""

import torch

from qkv.config import ModelConfig
from qkv.inspect import Inputs, Side, Trace
from qkv.model import Decoder, Layout
from qkv.model.experts import Experts
from tests.model.tiny import tiny_config


def experts(**differences) -> tuple[ModelConfig, Experts]:
    config = tiny_config(n_experts=5, n_experts_used=2, gated=True, bias=False, **differences)
    torch.manual_seed(0)
    return config, Experts(config).double()


def by_hand(layer: Experts, token: torch.Tensor) -> torch.Tensor:
    shares = torch.softmax(layer.router.projection.weight @ token, dim=0)
    first, second = shares.argsort(descending=True)[:2].tolist()
    total = shares[first] + shares[second]
    return sum(shares[i] / total * layer.experts[i](token) for i in (first, second))


def test_each_token_uses_the_experts_with_the_largest_shares():
    config, layer = experts()
    x = torch.randn(2, 7, config.d_model, dtype=torch.float64)
    expected = torch.stack([by_hand(layer, token) for token in x.flatten(0, 1)]).view(x.shape)
    torch.testing.assert_close(layer(x), expected)


def test_compiled_code_computes_the_same_whatever_is_chosen():
    """Where shapes must not depend on values, every expert sees all tokens."""
    config, layer = experts()
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(1, 4, config.d_model, dtype=torch.float64)
        torch.testing.assert_close(compiled(x), layer(x))


def test_idle_experts_have_a_gradient_of_zero():
    """Not none: workers that train together wait for each other's gradients."""
    config, layer = experts()
    layer(torch.randn(1, 1, config.d_model, dtype=torch.float64)).sum().backward()
    idle = [not expert.outer.weight.grad.any() for expert in layer.experts]
    assert sum(idle) == 3


def test_a_trace_tells_the_shares():
    config = tiny_config(family="decoder", n_experts=4, n_experts_used=3)
    tokens = torch.randint(config.vocab_size, (2, 6))
    words = tuple(tuple(map(str, row)) for row in tokens.tolist())
    trace = Trace(Decoder(config).eval(), Inputs(target=Side(tokens, words, Layout())))
    shares = trace["decoder.0.feed_forward.shares"]
    assert shares.shape == trace.shape("decoder.0.feed_forward.shares") == (2, 6, 4)
    assert ((shares > 0).sum(-1) == 3).all()
    torch.testing.assert_close(shares.sum(-1), torch.ones(2, 6))
    assert "decoder.0.feed_forward.hidden" not in trace
    assert trace["decoder.0.feed_forward.output"].shape == (2, 6, config.d_model)
