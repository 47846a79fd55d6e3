"""Linear layers mapped over models: the same values as ``nn.Linear``, gradients in the order of the weights."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedekd.engines import stacked_linear

NETWORK = nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3), nn.Linear(3, 2, bias=False))


def trained(network: nn.Module, weights: dict[str, Tensor], x: Tensor, bf16: bool) -> tuple[Tensor, dict[str, Tensor]]:
    leaves = {name: w.clone().requires_grad_() for name, w in weights.items()}
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        y = vmap(lambda w, x: functional_call(network, w, (x,)))(leaves, x)
    gradients = torch.autograd.grad(
        y.float().square().mean(), list(leaves.values())
    )  # as they lie before they are kept
    return y.float(), dict(zip(leaves, gradients, strict=True))


@pytest.mark.parametrize("bf16", [False, True])
def test_values_and_gradients_are_those_of_the_plain_layers(bf16: bool) -> None:
    torch.manual_seed(0)
    weights = {name: torch.randn(4, *w.shape) for name, w in NETWORK.named_parameters()}
    x, lowered = torch.randn(4, 6, 7), stacked_linear.lower(NETWORK)
    assert [type(m) for m in lowered] != [type(m) for m in NETWORK]
    expected, found = (trained(network, weights, x, bf16) for network in (NETWORK, lowered))
    limit = {"rtol": 0.1, "atol": 0.2} if bf16 else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(found[0], expected[0], **limit)
    for name, gradient in found[1].items():
        torch.testing.assert_close(gradient, expected[1][name], **limit)
        assert gradient.dtype == torch.float32
        assert name == "3.weight" or gradient.is_contiguous()  # that layer has no bias, so it is a plain one


def test_of_what_is_no_batch_of_rows_it_is_the_plain_layer() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(7, 5)
    lowered = stacked_linear.lower(layer)
    for shape in ((7,), (2, 3, 7)):
        x = torch.randn(shape)
        assert torch.equal(lowered(x), layer(x))
