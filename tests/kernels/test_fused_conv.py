"""The stacked convolution kernels."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional

from fedekd import models
from fedekd.engines import fused_conv
from fedekd.errors import FedekdError
from interpreted import DEVICE, INTERPRETED, needs_kernels

# The interpreter multiplies tf32 as float32; tf32's tiles are larger, so it has fewer programs to go through.
EXACT = "tf32" if INTERPRETED else "fp32"


@pytest.fixture(autouse=True)
def float32_references(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, PyTorch's own convolutions are tf32 unless told otherwise."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def draw(m: int, batch: int, size: tuple[int, int], inputs: int, outputs: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(m * 1000 + batch * 100 + inputs)
    shapes = (m, batch, *size, inputs), (m, outputs, inputs, 3, 3), (m, outputs)
    x, w, b = (torch.randn(shape, generator=generator) for shape in shapes)
    dy = torch.randn((m, batch, size[0] // 2, size[1] // 2, outputs), generator=generator)
    return x.to(DEVICE), (w / (9 * inputs) ** 0.5).to(DEVICE), b.to(DEVICE), dy.to(DEVICE)


def reference(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Model by model, image channels second as PyTorch wants them."""
    maps = [functional.conv2d(xi.permute(0, 3, 1, 2), wi, bi, padding=1) for xi, wi, bi in zip(x, w, b, strict=True)]
    return torch.stack([functional.max_pool2d(functional.relu(y), 2).permute(0, 2, 3, 1) for y in maps])


def gradients(layer: object, dy: Tensor, *inputs: Tensor) -> list[Tensor]:
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    y = layer(*leaves)  # type: ignore[operator]
    return [y.detach(), *torch.autograd.grad(y, leaves, dy.to(y.dtype))]


def distance(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


SHAPES = [
    (1, 5, (28, 28), 1, 64),
    (3, 5, (10, 12), 1, 32),
    (2, 3, (9, 8), 3, 64),
    (3, 5, (14, 14), 32, 64),
    (1, 5, (14, 14), 64, 128),
    (3, 2, (7, 7), 128, 128),
    (2, 3, (6, 5), 5, 24),
]


@needs_kernels
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_gradients_match_float64(shape: tuple) -> None:
    x, w, b, dy = draw(*shape)
    expected = gradients(reference, dy, x.double(), w.double(), b.double())
    found = gradients(lambda x, w, b: fused_conv.conv_relu_pool(x, w, b, EXACT), dy, x, w, b)
    for a, e in zip(found, expected, strict=True):
        assert a.dtype == torch.float32
        assert distance(a, e) < 1e-5


@pytest.fixture
def bf16_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter holds bf16 as 16-bit integers, and forgets to convert them before it multiplies."""
    if not INTERPRETED:
        return
    from triton import language
    from triton.runtime.interpreter import InterpreterBuilder

    multiply = InterpreterBuilder.create_dot

    def create_dot(self: InterpreterBuilder, a: Any, b: Any, *rest: Any) -> Any:
        a, b = (self.cast_impl(t, language.float32) if t.dtype.scalar == language.bfloat16 else t for t in (a, b))
        return multiply(self, a, b, *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)


@needs_kernels
@pytest.mark.usefixtures("bf16_products")
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("shape", [(2, 3, (8, 10), 3, 32), (2, 5, (7, 7), 32, 64)], ids=str)
def test_precisions(shape: tuple, precision: str) -> None:
    """Windows with two nearly equal values may route the gradient elsewhere, so gradients follow the kernel's code."""
    x, w, b, dy = draw(*shape)
    kind, far = fused_conv.PRECISIONS[precision][0], {"fp32": 1e-5, "tf32": 1e-3, "bf16": 1e-2}[precision]
    x = x.to(kind).float()
    y, code = fused_conv._Layer.apply(x.to(kind), w, b, precision)
    assert y.dtype == kind
    assert distance(y, reference(x.double(), w.double(), b.double())) < far
    found = gradients(lambda x, w, b: fused_conv.conv_relu_pool(x, w, b, precision), dy, x, w, b)
    spread = torch.zeros(*dy.shape[:2], *x.shape[2:4], dy.shape[-1], dtype=torch.float64, device=DEVICE)
    high, wide = 2 * dy.shape[2], 2 * dy.shape[3]
    for q in range(4):
        spread[:, :, q // 2 : high : 2, q % 2 : wide : 2] = torch.where(code == q, dy.double(), 0.0)

    def convolution(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        maps = [
            functional.conv2d(xi.permute(0, 3, 1, 2), wi, bi, padding=1) for xi, wi, bi in zip(x, w, b, strict=True)
        ]
        return torch.stack(maps).permute(0, 1, 3, 4, 2)

    expected = gradients(convolution, spread, x.double(), w.double(), b.double())
    for a, e in zip(found[1:], expected[1:], strict=True):
        assert distance(a, e) < far
        assert a.dtype == torch.float32


@needs_kernels
def test_windows_of_zeros_and_ties() -> None:
    x, w, b, dy = draw(2, 3, (4, 4), 32, 32)
    y, code = fused_conv._Layer.apply(x, w, b - 1e3, EXACT)
    assert (y == 0).all()
    assert (code == 4).all()
    for gradient in gradients(lambda x, w, b: fused_conv.conv_relu_pool(x, w, b - 1e3, EXACT), dy, x, w, b)[1:]:
        assert (gradient == 0).all()
    for inputs in (1, 32):  # equal values: the first wins, as in PyTorch
        x, w, b, dy = draw(1, 2, (4, 4), inputs, 16)
        y, code = fused_conv._Layer.apply(x, torch.zeros_like(w), b, EXACT)
        assert torch.equal(code, torch.where(b > 0, 0, 4).to(torch.uint8).expand_as(code))
        assert torch.equal(y, b.relu().expand_as(y))


@needs_kernels
@pytest.mark.parametrize("inputs", [1, 16])
def test_nan_is_not_hidden(inputs: int) -> None:
    x, w, b, _ = draw(1, 2, (4, 4), inputs, 16)
    x[0, 1, 3, 3, 0] = torch.nan
    y = fused_conv.conv_relu_pool(x, w, b, EXACT)
    assert y[0, 0].isfinite().all()
    assert y[0, 1, 1, 1].isnan().all()


@needs_kernels
def test_any_strides() -> None:
    for inputs in (3, 16):
        x, w, b, dy = draw(2, 3, (6, 6), inputs, 16)
        planar = x.permute(0, 1, 4, 2, 3).contiguous().permute(0, 1, 3, 4, 2)
        layer = lambda x, w, b: fused_conv.conv_relu_pool(x, w, b, EXACT)  # noqa: E731
        for a, e in zip(gradients(layer, dy, planar, w, b), gradients(layer, dy, x, w, b), strict=True):
            assert torch.equal(a, e)


@needs_kernels
def test_gradient_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, b, dy = draw(3, 2, (6, 6), 16, 16)
    layer = lambda x, w, b: fused_conv.conv_relu_pool(x, w, b, EXACT)  # noqa: E731
    whole = gradients(layer, dy, x, w, b)
    monkeypatch.setattr(fused_conv, "WORKSPACE", 2 * 4 * dy[0].numel() * 4)
    for a, e in zip(gradients(layer, dy, x, w, b), whole, strict=True):
        assert torch.equal(a, e)


@needs_kernels
@pytest.mark.parametrize("shared", [False, True])
def test_mapped_module_trains_like_the_plain_one(shared: bool) -> None:
    """vmap over stacked weights, one backward pass for the sum of the losses: each model gets its own gradients."""
    torch.manual_seed(0)
    stack = [models.CNN((1, 12, 12), 3, (16, 32), 8).to(DEVICE) for _ in range(3)]
    x = torch.randn((4, 1, 12, 12) if shared else (3, 4, 1, 12, 12), device=DEVICE)
    weights, _ = stack_module_state(stack)
    fused = fused_conv.lower(stack[0], EXACT)
    y = vmap(lambda w, x: functional_call(fused, w, (x,)), in_dims=(0, None if shared else 0))(weights, x)
    y.square().sum().backward()
    for i, model in enumerate(stack):
        model.zero_grad()
        expected = model(x if shared else x[i])
        assert torch.allclose(y[i], expected, atol=1e-5)
        expected.square().sum().backward()
        for name, parameter in model.named_parameters():
            assert torch.allclose(weights[name].grad[i], parameter.grad, atol=1e-4), name


@needs_kernels
def test_module_alone() -> None:
    torch.manual_seed(0)
    plain = models.CNN((3, 8, 8), 3, (8, 16), 8).to(DEVICE)
    fused, x = fused_conv.lower(plain, EXACT), torch.randn(4, 3, 8, 8, device=DEVICE, requires_grad=True)
    assert torch.allclose(fused(x), plain(x), atol=1e-5)
    found, expected = (torch.autograd.grad(f(x).square().sum(), x)[0] for f in (fused, plain))
    assert torch.allclose(found, expected, atol=1e-4)
    y = fused.body[0](x)
    assert y.is_contiguous(memory_format=torch.channels_last)
    half = fused_conv.lower(plain, "bf16")
    assert half.body[0](x).dtype == torch.float32
    with torch.autocast(DEVICE.type, torch.bfloat16):
        assert half.body[0](x).dtype == torch.bfloat16
        assert half(x).shape == (4, 3)


# --- without a GPU -------------------------------------------------------------------------------------------


def test_lower_keeps_names_and_function() -> None:
    plain = models.private((1, 28, 28), 10)
    lowered = fused_conv.lower(plain, "tf32")
    assert list(lowered.state_dict()) == list(plain.state_dict())
    kinds = [type(layer).__name__ for layer in lowered.body]
    assert kinds == ["ConvReluPool", "Identity", "Identity"] * 3
    assert type(plain.body[0]) is nn.Conv2d
    lowered.load_state_dict(plain.state_dict())
    if not INTERPRETED:
        x = torch.randn(2, 1, 28, 28)
        assert torch.equal(lowered(x), plain(x))


def test_lower_does_not_share_weights_with_the_original() -> None:
    plain = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    lowered = fused_conv.lower(plain, "bf16")
    with torch.no_grad():
        lowered[0].weight.zero_()
    assert plain[0].weight.abs().sum() > 0


@pytest.mark.parametrize(
    "layers",
    [
        (nn.Conv2d(4, 4, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        (nn.Conv2d(4, 4, 3), nn.ReLU(), nn.MaxPool2d(2)),
        (nn.Conv2d(4, 4, 3, padding=1, stride=2), nn.ReLU(), nn.MaxPool2d(2)),
        (nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.ReLU(), nn.MaxPool2d(2)),
        (nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.ReLU(), nn.MaxPool2d(2)),
        (nn.Conv2d(4, 4, 3, padding=2, dilation=2), nn.ReLU(), nn.MaxPool2d(2)),
        (nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), nn.ReLU(), nn.MaxPool2d(2)),
        (nn.Conv2d(4, 4, 3, padding=1), nn.GELU(), nn.MaxPool2d(2)),
        (nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3)),
        (nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, stride=1)),
        (nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)),
        (nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)),
        (nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()),
    ],
    ids=lambda layers: " ".join(map(str, layers)),
)
def test_lower_leaves_other_layers_alone(layers: tuple[nn.Module, ...]) -> None:
    lowered = fused_conv.lower(nn.Sequential(*layers), "tf32")
    assert [type(layer) for layer in lowered] == [type(layer) for layer in layers]


def test_lower_inside_nested_modules() -> None:
    block = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d((2, 2), (2, 2)))
    lowered = fused_conv.lower(nn.Sequential(nn.Sequential(block), nn.Flatten()), "tf32")
    assert type(lowered[0][0][0]) is fused_conv.ConvReluPool
    assert list(lowered.state_dict()) == ["0.0.0.weight", "0.0.0.bias"]


def test_not_available_on_the_cpu() -> None:
    assert not fused_conv.available("cpu")
    assert not fused_conv.available(torch.device("cpu"))


def test_errors_say_what_to_do() -> None:
    with pytest.raises(FedekdError, match="bf16"):
        fused_conv.lower(nn.Sequential(), "bf61")
    x, w, b, _ = (t.cpu() for t in draw(1, 1, (4, 4), 1, 1))
    with pytest.raises(FedekdError, match="fp32"):
        fused_conv.conv_relu_pool(x, w, b, "fp23")
    if not INTERPRETED:
        with pytest.raises(FedekdError, match="Triton"):
            fused_conv.conv_relu_pool(x, w, b, "fp32")


def test_sums_are_split_to_fill_the_chip() -> None:
    cpu = torch.device("cpu")
    for rows, block, programs in ((980, 32, 3), (12544, 64, 60), (100, 64, 1), (12544, 64, 10_000), (5, 16, 1)):
        parts, each = fused_conv._split(rows, block, programs, cpu)
        assert each % block == 0
        assert (parts - 1) * each < rows <= parts * each
    assert fused_conv._split(12544, 64, 10_000, cpu)[0] == 1
    assert fused_conv._split(12544, 64, 60, cpu)[0] > 1


@needs_kernels
def test_weights_that_lie_taps_first_get_gradients_that_lie_so() -> None:
    x, w, b, dy = draw(2, 3, (8, 6), 5, 24)
    ordered = fused_conv.taps_first(w).copy_(w)
    assert ordered.permute(0, 3, 4, 1, 2).is_contiguous()
    found = []
    for weights in (w, ordered):
        leaf = weights.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(fused_conv.conv_relu_pool(x, leaf, b, EXACT), leaf, dy)
        assert gradient.stride() == weights.stride()
        found.append(gradient)
    assert torch.equal(*found)


def test_only_layers_after_the_first_have_ordered_weights() -> None:
    lowered = fused_conv.lower(models.private((1, 28, 28), 10), "fp32")
    names = fused_conv.ordered_weights(lowered)
    assert len(names) == 2
    assert names < dict(lowered.named_parameters()).keys()
    assert not fused_conv.ordered_weights(models.private((1, 28, 28), 10))
