"""APFL is Local at alpha 1 and FedAvg's client at alpha 0; in between its steps are those of the paper."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from fedekd import methods
from fedekd.engines.batch import make_batch
from fedekd.tasks import Regression
from serially import answers, engine_of, go_on, number, one_step, same, states, traffic, trained

FEDAVG, LOCAL = methods.get("fedavg"), methods.get("local")


@pytest.mark.parametrize("rows", ["images", "tables"])
def test_at_alpha_1_mixture_and_personal_model_are_local_to_the_bit(rows, request):
    federation = request.getfixturevalue(rows)
    local, apfl = trained(federation, LOCAL), trained(federation, methods.get("apfl", alpha=1.0))
    assert same(states(local), states(apfl))
    assert same(states(local), states(apfl, "personal"))
    assert local.evaluate() == apfl.evaluate()
    assert not same(states(local), states(trained(federation, methods.get("apfl"))))


def test_weights_that_lie_otherwise_in_memory_give_the_models_own_bits(images):
    """A convolution of one channel loses its memory order in a sum, and with it the last bits."""
    client = engine_of(images, methods.get("apfl")).clients[0]
    module, x = client.models["personal"], client.data.scale.inputs(client.data.x[client.rows["train"]])
    tree = {n: (w + 0 * w).detach() for n, w in module.named_parameters()}
    assert any(t.stride() != w.stride() for t, w in zip(tree.values(), module.parameters(), strict=True))
    module(x).square().mean().backward()
    found = grad(lambda tree: client._applied("personal", tree, x).square().mean())(tree)
    assert all(torch.equal(found[n], w.grad) for n, w in module.named_parameters())


@pytest.mark.parametrize("rows", ["images", "tables"])
def test_at_alpha_0_the_mixture_is_fedavgs_client_after_its_own_epochs(rows, request):
    federation = request.getfixturevalue(rows)
    apfl, fedavg = trained(federation, methods.get("apfl", alpha=0.0)), trained(federation, FEDAVG, rounds=1)
    for client in fedavg.clients:
        client.perform(FEDAVG.steps(1)[0], 1)
    assert same(states(fedavg), states(apfl))


@pytest.mark.parametrize("rows", ["images", "tables"])
def test_the_global_model_is_fedavgs_to_the_bit_for_any_alpha(rows, request):
    federation = request.getfixturevalue(rows)
    fedavg = trained(federation, FEDAVG)
    for alpha in (0.0, 0.3, 1.0):
        apfl = trained(federation, methods.get("apfl", alpha=alpha))
        assert same(states(fedavg), states(apfl, "global"))
        assert traffic(fedavg) == traffic(apfl)


@pytest.mark.parametrize("alpha", [None, 0.25, 0.8])
def test_one_step_from_v_1_and_y_3(alpha):
    """f = x^2 / 2: v' = v - lr alpha m with m of the old v and y; at alpha .5, which is the default, .9 and 2.7."""
    engine = one_step(
        methods.get("apfl") if alpha is None else methods.get("apfl", alpha=alpha), personal=1.0, **{"global": 3.0}
    )
    a = 0.5 if alpha is None else alpha
    v = 1 - 0.1 * a * (a * 1 + (1 - a) * 3)
    assert number(engine, "personal") == pytest.approx(v, abs=1e-6)
    assert number(engine, "global") == pytest.approx(2.7, abs=1e-6)
    assert number(engine, "private") == pytest.approx(a * v + (1 - a) * 2.7, abs=1e-6)
    if alpha is None:
        assert number(engine, "personal") == pytest.approx(0.9, abs=1e-6)


def test_the_mixture_answers_and_only_the_global_model_leaves(images):
    engine = trained(images, methods.get("apfl"))
    assert {name for _, name in engine.door.log} == {"global"}
    for client, found in zip(engine.clients, answers(engine), strict=True):
        assert torch.equal(found, client.outputs("private", client.rows["test"])[0])
    mixtures = states(engine)
    assert not torch.equal(mixtures[0]["head.weight"], mixtures[1]["head.weight"])


class Normed(nn.Module):
    def __init__(self, shape, outputs) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(shape[0], 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, outputs))

    def forward(self, x):
        return self.layers(x)


def test_the_mixture_has_the_personal_models_statistics(tables):
    engine = trained(tables, methods.get("apfl"), private=Normed, batch_size=20)
    for mixture, personal in zip(states(engine), states(engine, "personal"), strict=True):
        for name in ("layers.1.running_mean", "layers.1.running_var", "layers.1.num_batches_tracked"):
            assert torch.equal(mixture[name], personal[name])
            assert personal[name].any()


@pytest.mark.parametrize("name", ["apfl", "apfl-adaptive"])
def test_answers_in_between_change_nothing(tables, name):
    """The mixture is trained in training mode whether or not it has just answered."""
    asked, silent = (engine_of(tables, methods.get(name), private=Normed, batch_size=20) for _ in range(2))
    for _ in range(3):
        asked.round()
        asked.evaluate()
        silent.round()
    assert all(same(states(asked, role), states(silent, role)) for role in methods.get(name).roles)


# Each client's own alpha


def test_alpha_follows_its_gradient():
    """From v 1, y 3 and m 2: the slope is (v - y) f'(m) = -4, before any other step; the rate is the run's."""
    engine = one_step(methods.get("apfl-adaptive", alpha=0.5), personal=1.0, **{"global": 3.0})
    alpha = 0.5 + 0.1 * 4
    assert float(engine.clients[0].memory["alpha"]) == pytest.approx(alpha, abs=1e-6)
    v = 1 - 0.1 * alpha * (alpha * 1 + (1 - alpha) * 3)
    assert number(engine, "personal") == pytest.approx(v, abs=1e-6)
    assert number(engine, "private") == pytest.approx(alpha * v + (1 - alpha) * 2.7, abs=1e-6)


@pytest.mark.parametrize(("v", "y", "end"), [(1.0, 9.0, 1.0), (9.0, 1.0, 0.0)])
def test_alpha_stays_between_0_and_1(v, y, end):
    engine = one_step(methods.get("apfl-adaptive"), personal=v, **{"global": y})
    assert float(engine.clients[0].memory["alpha"]) == end


def test_the_slope_is_the_mean_over_one_pass(tables):
    """Where m was when the round began, with the y that had arrived."""
    method = methods.get("apfl-adaptive", alpha=0.3)
    engine = engine_of(tables, method, batch_size=10**4)
    engine.round()
    v, y = ([{n: t.double() for n, t in s.items()} for s in states(engine, role)] for role in ("personal", "global"))
    assert [float(c.memory["alpha"]) for c in engine.clients] == pytest.approx([0.3] * 3), "v = y at the start"
    engine.round()
    for client, a, b in zip(engine.clients, v, y, strict=True):
        rows = client.rows["train"]
        x, target = client.data.scale.inputs(client.data.x[rows]).double(), client.data.y[rows].double()
        module = copy.deepcopy(client.models["private"]).double()

        def loss(alpha, module=module, a=a, b=b, x=x, target=target):
            out = functional_call(module, {n: alpha * a[n] + (1 - alpha) * b[n] for n in a}, (x,))
            return (out[:, 0] - target).square().mean()

        slope = float(grad(loss)(torch.tensor(0.3, dtype=torch.float64)))
        assert abs(slope) > 1e-3
        assert float(client.memory["alpha"]) == pytest.approx(0.3 - 3e-3 * slope, abs=1e-6)


def test_looking_for_the_slope_is_one_pass_that_moves_nothing(images):
    """The run has two epochs, and a rate that would move it."""
    engine = trained(images, methods.get("apfl-adaptive"))
    *mix, look, _ = engine.method.steps(2)[:4]
    for client in engine.clients:
        for step in mix:
            client.perform(step, 2)
    before = states(engine)
    for client in engine.clients:
        client.perform(look, 2)
        assert client.steps == -(-len(client.rows["train"]) // 16)
    assert same(states(engine), before)


def test_without_adapting_alpha_is_no_part_of_the_state(images):
    assert engine_of(images, methods.get("apfl")).clients[0].memory == {}


def test_the_adaptive_form_leaves_the_global_model_alone(images):
    adaptive, plain = (trained(images, methods.get(name), rounds=3) for name in ("apfl-adaptive", "apfl"))
    assert same(states(adaptive, "global"), states(plain, "global"))
    assert not same(states(adaptive), states(plain))
    alphas = [float(client.memory["alpha"]) for client in adaptive.clients]
    assert len(set(alphas)) == 3
    assert all(0 <= alpha <= 1 for alpha in alphas)


@pytest.mark.parametrize("name", ["apfl", "apfl-adaptive"])
def test_it_goes_on_to_the_same_bits_after_an_interruption(images, name):
    assert go_on(images, methods.get(name))


@pytest.mark.parametrize("name", ["apfl", "apfl-adaptive"])
def test_its_functions_can_be_mapped_over_clients(name):
    method = methods.get(name, alpha=0.25)
    x, mask = torch.tensor([[1.0, 2.0], [3.0, 50.0]]), torch.tensor([[True, True], [True, False]])
    v, y = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -1.0])
    alphas = torch.tensor([0.25, 0.75])

    def batch(v, y, x, mask, alpha):
        seen = {"y": torch.zeros(2), "weights": {"personal": {"w": v}, "global": {"w": y}}, "mask": mask}
        seen |= {"outputs": {"global": y * x}, "memory": {"alpha": alpha}, "gradients": {"private": {"w": v * y}}}
        seen |= {"x": x, "uniform": x, "rows": x, "counts": x, "steps": x}
        return make_batch(method, Regression(), 0.1, seen, lambda role, tree, x: tree["w"] * x)

    def one(v, y, x, mask, alpha):
        return grad(lambda pair: method.loss(batch(*pair, x, mask, alpha)))((v, y))

    used = alphas if method.adaptive else torch.full((2,), 0.25)
    squares = torch.tensor([2.5, 9.0])  # means of x^2 over the real rows
    found = vmap(one)(v, y, x, mask, alphas)
    torch.testing.assert_close(found[0], 2 * squares * used * (used * v + (1 - used) * y))
    torch.testing.assert_close(found[1], 2 * squares * y)
    moved = vmap(lambda *args: method.adapted(batch(*args)))(v, y, x, mask, alphas)["alpha"]
    torch.testing.assert_close(moved, (alphas - 0.1 * (v - y) * v * y).clamp(0, 1))
