"""FedDF: FedAvg without fusion, and fusion towards the ensemble."""

from __future__ import annotations

import pytest
import torch

from distilling import batch_of, equal, trained, with_public
from fedekd import gate, methods
from fedekd.engines.server import ServerClient
from fedekd.methods import Exchange
from fedekd.tasks import Regression

METHOD = methods.get("feddf")


@pytest.mark.parametrize("data", ["images", "tables"])
def test_without_fusion_it_is_fedavg_to_the_bit(data, request):
    federation = with_public(request.getfixturevalue(data))
    fedavg = trained(federation, methods.get("fedavg"))
    assert equal(fedavg, trained(federation, methods.get("feddf", epochs=0)))
    assert not equal(fedavg, trained(federation, methods.get("feddf", epochs=1)))


def test_the_student_is_drawn_to_the_softmax_of_the_mean_logits():
    teachers = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    student = torch.randn(5, 4, generator=torch.Generator().manual_seed(1), requires_grad=True)
    loss = METHOD.fuse(batch_of(torch.zeros(5).long(), student, teachers=teachers))
    torch.testing.assert_close(loss, gate.kl(teachers.mean(0), student).mean())
    loss.backward()
    torch.testing.assert_close(student.grad, (student.softmax(-1) - teachers.mean(0).softmax(-1)).detach() / 5)


def test_a_regression_is_drawn_to_the_mean_prediction():
    teachers = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    batch = batch_of(torch.zeros(2), torch.tensor([0.0, 5.0]), teachers=teachers, task=Regression())
    assert METHOD.fuse(batch).item() == pytest.approx((2**2 + 1**2) / 2)


def test_one_client_is_its_own_teacher(images):
    """With a teacher that is the student itself the loss and its gradient are 0 to rounding."""
    federation = with_public(images, clients=1)
    seen = []

    class Watched(type(METHOD)):
        def fuse(self, batch):
            loss = super().fuse(batch)
            (gradient,) = torch.autograd.grad(loss, batch.outputs["private"], retain_graph=True)
            seen.append((loss.item(), gradient.abs().max().item()))
            return 0 * loss

    fused = trained(federation, Watched(epochs=1), 2)
    assert seen
    assert max(abs(loss) for loss, _ in seen) < 1e-6
    assert max(gradient for _, gradient in seen) < 1e-7
    assert equal(fused, trained(federation, methods.get("fedavg"), 2))


def test_fusion_brings_the_average_nearer_to_the_ensemble(images):
    federation = with_public(images)
    engine = trained(federation, methods.get("feddf", epochs=0), 2)
    for client in engine.clients:
        client.train(METHOD.steps(2)[0], 2)
    uploads = [client.upload(Exchange("private"), 2) for client in engine.clients]
    ensemble = torch.stack([c.outputs("private", c.rows["public"])[0] for c in engine.clients]).mean(0)
    distances = []
    for epochs in (0, 20):
        step = methods.get("feddf", epochs=epochs).steps(2)[1]
        answer = engine.server.combine(step, uploads, [1.0] * 3, range(3), 2)
        server = ServerClient(engine.job, engine.data)
        server._load("private", server.refined(step, uploads, answer, 2))
        distances.append(gate.kl(ensemble, server.outputs("private", server.rows["public"])[0]).mean())
    assert distances[1] < distances[0] / 2


def test_all_clients_get_the_fused_model_and_the_server_goes_on_with_it(images):
    engine = trained(with_public(images), methods.get("feddf", epochs=1), 2)
    first = engine.clients[0].models["private"].state_dict()
    for client in engine.clients:
        assert all(torch.equal(t, first[name]) for name, t in client.models["private"].state_dict().items())
    assert all(torch.equal(t, first[name]) for name, t in engine.server.sent["private"].items())
