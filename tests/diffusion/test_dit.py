"""The diffusion Transformer: its two forms agree, and it is what DV's is."""

import math

import pytest
import torch
import torch.nn.functional as F

from sageplan.diffusion.dit import DiT, Network, sinusoids
from sageplan.errors import ConfigError

H, S = 8, 5
TIMES = torch.tensor([0.9, 0.5, 0.05])


def network(**changes):
    """With modulations, gates and head opened, as training does."""
    torch.manual_seed(0)
    net = DiT(H, S, Network(**{"width": 32, "embedding": 16, "heads": 4, "depth": 3, **changes}))
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return net


def noisy(batch=6):
    return torch.randn(batch, H, S, generator=torch.Generator().manual_seed(1))


FORMS = pytest.mark.parametrize(
    "changes", [{}, {"residual": "standard"}, {"gelu": "none"}, {"depth": 1, "heads": 1}, {"patch": 4}], ids=str
)


@FORMS
def test_the_prepared_form_is_the_same_function(changes):
    net = network(**changes)
    prepared = net.prepare(TIMES)
    for step, time in enumerate(TIMES):
        wanted = net(noisy(), time.expand(6)).detach()
        assert wanted.std() > 0.1
        assert (prepared(noisy(), step) - wanted).abs().max() < 1e-5


@FORMS
def test_in_bf16_it_is_the_same_but_for_rounding(changes):
    net = network(**changes)
    wanted, found = net(noisy(), TIMES[1].expand(6)).detach(), net.prepare(TIMES, "bf16")(noisy(), 1)
    assert found.dtype == torch.float32
    assert 0 < (found - wanted).abs().mean() < 0.03 * wanted.std()


def test_times_are_each_samples_own():
    net, x = network(), noisy(3)
    together = net(x, TIMES)
    for row, time in enumerate(TIMES):
        assert torch.allclose(net(x[row : row + 1], time[None])[0], together[row], atol=1e-5)
    assert (together - net(x, TIMES.flip(0))).abs().max() > 0.01


def test_later_training_does_not_reach_what_was_prepared():
    net = network()
    prepared = net.prepare(TIMES)
    before = prepared(noisy(), 0)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(1)
    assert torch.equal(prepared(noisy(), 0), before)


@pytest.mark.parametrize("residual", ["modulated", "standard"])
def test_a_block_is_that_of_the_definition(residual):
    """adaLN-Zero written out with PyTorch's own attention; DV's adds attention to the modulated tokens."""
    block = network(residual=residual).blocks[0]
    x, level = torch.randn(2, H, 32), torch.randn(2, 32)
    attention = torch.nn.MultiheadAttention(32, 4, batch_first=True)
    attention.load_state_dict({
        "in_proj_weight": block.qkv.weight, "in_proj_bias": block.qkv.bias,
        "out_proj.weight": block.out.weight, "out_proj.bias": block.out.bias,
    })  # fmt: skip
    chunks = F.linear(level, block.modulation.weight, block.modulation.bias)[:, None].chunk(6, dim=-1)
    shift1, scale1, gate1, shift2, scale2, gate2 = chunks
    seen = F.layer_norm(x, (32,), eps=1e-6) * (1 + scale1) + shift1
    wanted = (seen if residual == "modulated" else x) + gate1 * attention(seen, seen, seen)[0]
    seen = F.layer_norm(wanted, (32,), eps=1e-6) * (1 + scale2) + shift2
    wanted = wanted + gate2 * block.down(F.gelu(block.up(seen), approximate="tanh"))
    assert torch.allclose(block(x, level), wanted, atol=1e-5)


def test_it_begins_with_closed_gates_and_answers_nothing():
    torch.manual_seed(0)
    net = DiT(H, S, Network(width=32, heads=4))
    assert not net(noisy(), torch.full((6,), 0.5)).any()
    assert not any(block.modulation.weight.any() for block in net.blocks)


def test_the_frequencies_are_saved_but_not_trained():
    net = network()
    assert "frequencies" in net.state_dict()
    assert "frequencies" not in dict(net.named_parameters())


def test_positions_are_sinusoids():
    table = sinusoids(6, 8)
    for position in range(6):
        for k in range(4):
            angle = position / 10_000 ** (k / 4)
            assert table[position, k].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[position, 4 + k].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_a_patch_of_states_is_one_token():
    net = network(patch=4)
    assert net.position.shape == (2, 32)
    tokens = []
    net.blocks[0].register_forward_hook(lambda block, inputs, output: tokens.append(inputs[0]))
    x = noisy(1)
    answer = net(x, TIMES[:1])
    embedded = torch.stack([x[0, :4].flatten(), x[0, 4:].flatten()])
    assert torch.allclose(tokens[0][0], net.embed(embedded) + net.position, atol=1e-6)
    x[0, 7] += 1  # of the second patch; attention carries it to the first
    assert (net(x, TIMES[:1]) - answer)[0, :4].abs().max() > 1e-3


def test_widths_that_heads_do_not_divide_are_refused():
    with pytest.raises(ConfigError, match="multiple of heads=3"):
        Network(width=32, heads=3)
