"""FedRoD: a balanced generic model that the personal head cannot touch, and a head that adds to its logits."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from fedekd import methods
from fedekd.engines.batch import make_batch
from fedekd.errors import FedekdError
from fedekd.methods import Exchange, Method, Train
from fedekd.methods.fedrod import ABSENT, FedRoD, log_counts
from fedekd.tasks import Classification
from serially import answers, engine_of, go_on, same, states, traffic, trained

FEDROD = methods.get("fedrod")


@dataclass(frozen=True)
class Generic(Method):
    """FedRoD without its personal head"""

    name = "generic"

    def steps(self, round):
        return Train(("private",), self.loss), Exchange("private")

    def loss(self, batch):
        return batch.mean(cross_entropy(batch.outputs["private"] + log_counts(batch.counts), batch.y, reduction="none"))


@dataclass(frozen=True)
class Louder(FedRoD):
    """A personal head that learns at another rate"""

    def loss(self, batch):
        return super().loss(batch) + 6 * batch.supervised("personal")


@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
def test_neither_the_personal_head_nor_its_rate_touches_the_generic_model(images, optimizer):
    runs = [trained(images, method, optimizer=optimizer) for method in (FEDROD, Generic(), Louder())]
    assert same(states(runs[0]), states(runs[1]))
    assert same(states(runs[0]), states(runs[2]))
    assert not same(states(runs[0], "personal"), states(runs[2], "personal"))


def test_personal_heads_begin_at_zero_stay_at_home_and_differ(images):
    engine = engine_of(images, FEDROD)
    assert all(not t.any() for state in states(engine, "personal") for t in state.values())
    for _ in range(2):
        engine.round()
    heads = states(engine, "personal")
    assert not torch.equal(heads[0]["weight"], heads[1]["weight"])
    assert traffic(engine) == traffic(trained(images, methods.get("fedavg")))
    assert {name for _, name in engine.door.log} == {"private"}
    assert same(states(engine)[:1], states(engine)[1:2])


def test_a_client_answers_with_the_sum_of_both_heads(images):
    engine = trained(images, FEDROD)
    for client, found in zip(engine.clients, answers(engine), strict=True):
        (generic, features), (personal, _) = (client.outputs(role, client.rows["test"]) for role in FEDROD.roles)
        head = client.models["personal"]
        torch.testing.assert_close(personal, features @ head.weight.T + head.bias)
        torch.testing.assert_close(found, generic + personal)


# The loss by hand

Y = torch.tensor([0, 2, 2, 1])
COUNTS = torch.tensor([5, 2, 9, 0])


def make(outputs, counts=COUNTS, method=FEDROD, y=Y, mask=None):
    seen = {"x": None, "y": y, "outputs": outputs, "uniform": torch.zeros(len(y), 0), "rows": torch.arange(len(y))}
    seen |= {"counts": counts, "steps": torch.tensor(1), "mask": mask}
    return make_batch(method, Classification(), 0.1, seen)


@pytest.fixture
def logits() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {role: torch.randn(4, 4, generator=generator) for role in ("private", "personal")}


def gradients(logits, counts=COUNTS, method=FEDROD):
    return grad(lambda outputs: method.loss(make(outputs, counts, method)))(logits)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
def test_the_loss_is_that_of_the_paper(logits, gamma):
    """Balanced softmax in its own form: n_c^gamma e^z_c / sum."""
    method = FEDROD if gamma == 1 else methods.get("fedrod", gamma=gamma)
    shares = COUNTS.double() ** gamma * logits["private"].double().exp()
    generic = -(shares / shares.sum(-1, keepdim=True))[range(4), Y].log().mean()
    personal = cross_entropy((logits["private"] + logits["personal"]).double(), Y)
    assert float(method.loss(make(logits, method=method))) == pytest.approx(float(generic + personal), rel=1e-5)


def test_each_head_has_its_own_gradient(logits):
    found = gradients(logits)
    plain = grad(lambda z: cross_entropy(z + log_counts(COUNTS), Y))(logits["private"])
    torch.testing.assert_close(found["private"], plain)
    personal = grad(lambda z: cross_entropy(logits["private"] + z, Y))(logits["personal"])
    torch.testing.assert_close(found["personal"], personal)


def test_equal_counts_give_the_gradient_of_cross_entropy(logits):
    found = gradients(logits, counts=torch.full((4,), 6))["private"]
    torch.testing.assert_close(found, grad(lambda z: cross_entropy(z, Y))(logits["private"]))
    assert not torch.allclose(found, gradients(logits)["private"], atol=1e-3)


def test_only_the_shares_of_the_counts_matter(logits):
    torch.testing.assert_close(gradients(logits, counts=7 * COUNTS), gradients(logits))


def test_without_gamma_counts_do_not_matter(logits):
    """Not even those of absent classes."""
    found = gradients(logits, method=methods.get("fedrod", gamma=0.0))["private"]
    torch.testing.assert_close(found, grad(lambda z: cross_entropy(z, Y))(logits["private"]))


def test_absent_classes_are_out_of_the_softmax_and_give_no_nan(logits):
    found = gradients(logits)["private"]
    assert torch.isfinite(found).all()
    assert (found[:, 3] == 0).all()
    assert (found[:, :3] != 0).all()
    assert torch.isfinite(gradients(logits, counts=torch.zeros(4, dtype=torch.long))["private"]).all()


def test_mapped_over_clients_padding_changes_nothing(logits):
    """Whatever it holds: here a label that the client does not have."""
    counts = torch.stack([COUNTS, torch.tensor([0, 3, 1, 0])])
    y = torch.stack([Y, torch.tensor([1, 2, 0, 0])])
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    stack = {role: torch.stack([z, -z]) for role, z in logits.items()}

    def one(outputs, counts, y, mask):
        return grad(lambda tree: FEDROD.loss(make(tree, counts, y=y, mask=mask)))(outputs)

    found = vmap(one)(stack, counts, y, mask)
    torch.testing.assert_close({role: g[0] for role, g in found.items()}, gradients(logits))
    short = {role: -z[:2] for role, z in logits.items()}
    alone = grad(lambda tree: FEDROD.loss(make(tree, counts[1], y=y[1, :2])))(short)
    for role in short:
        torch.testing.assert_close(found[role][1, :2], alone[role])
        assert (found[role][1, 2:] == 0).all()


def test_it_goes_on_to_the_same_bits_after_an_interruption(images):
    assert go_on(images, FEDROD)


def test_regression_costs_one_line():
    with pytest.raises(FedekdError, match=r"^method 'fedrod' is defined for classification, not for regression$"):
        FEDROD.check("regression")


def test_a_class_with_one_row_is_there_and_one_with_none_is_not():
    found = log_counts(torch.tensor([1, 3, 0]))
    assert found[:2].tolist() == pytest.approx([0.0, math.log(3)])
    assert found[2] == ABSENT
