"""What every method and Local are trained with alike: weight decay, a learning rate that falls, flips and crops."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from itertools import product
from types import MappingProxyType

import numpy as np
import pytest
import torch
from torch import nn

from fedekd import methods
from fedekd.data import federate
from fedekd.engines.augment import MIXES, MOVES, flip_crop, mixed
from fedekd.engines.chunk import Chunk
from fedekd.engines.job import Job, Training, make_optimizer
from fedekd.engines.optimizer import FusedOptimizer
from fedekd.engines.schedule import schedule
from fedekd.engines.serial import Serial
from fedekd.engines.stacked import Stacked
from fedekd.errors import FedekdError
from fedekd.methods.base import Exchange, Remember, Train
from fedekd.methods.fedavg import FedAvg
from fedekd.methods.local import Local
from tiny import tiny_private, tiny_proxy

TRAINING = Training(rounds=3, epochs=2, batch_size=16, lr=3e-3)


def job(federation, method="local", seed=0, private=tiny_private, **training):
    settings = replace(TRAINING, **training)
    found = methods.get(method) if isinstance(method, str) else method
    return Job(federation, found, seed, settings, private, tiny_proxy)


def weights_of(engine, one):
    """By client and role, the weights after all rounds."""
    for _ in range(one.training.rounds):
        engine.round()
    return found(engine)


def found(engine):
    return [{role: client.weights(role) for role in client.models} for client in engine.clients_of(0)]


def serially(one):
    return weights_of(Serial(one), one)


def agree(one, atol=2e-4):
    """Both engines give the same weights, which are returned."""
    ours, theirs = weights_of(Stacked([one]), one), serially(one)
    for a, b in zip(ours, theirs, strict=True):
        for role, tree in b.items():
            for n, w in tree.items():
                assert torch.allclose(a[role][n], w, atol=atol, rtol=0), (role, n)
    return theirs


def differ(ours, theirs):
    return any(
        not torch.equal(a[role][n], b[role][n])
        for a, b in zip(ours, theirs, strict=True)
        for role in a
        for n in a[role]
    )


# --- decay of the weights ------------------------------------------------------------------------------------


def stepped(optimizer, decay, steps=3):
    """A weight of two entries after steps along a gradient of (1, -2)."""
    weight = nn.Parameter(torch.tensor([2.0, -3.0]))
    made = make_optimizer(replace(TRAINING, lr=0.1, optimizer=optimizer, weight_decay=decay), [weight])
    for _ in range(steps):
        weight.grad = torch.tensor([1.0, -2.0])
        made.step()
    return weight.detach()


def test_adam_decays_apart_from_the_gradient():
    """The gradient is constant, so that each of Adam's steps is 0.1 along its sign."""
    by_hand = torch.tensor([2.0, -3.0])
    for _ in range(3):
        by_hand = by_hand * (1 - 0.1 * 0.5) - 0.1 * torch.tensor([1.0, -1.0])
    assert torch.allclose(stepped("adam", 0.5), by_hand, atol=1e-6)


@pytest.mark.parametrize(("optimizer", "momentum"), [("sgd", 0.0), ("momentum", 0.9)])
def test_gradient_descent_decays_with_the_gradient(optimizer, momentum):
    by_hand, moment = torch.tensor([2.0, -3.0]), torch.zeros(2)
    for _ in range(3):
        moment = momentum * moment + torch.tensor([1.0, -2.0]) + 0.5 * by_hand
        by_hand = by_hand - 0.1 * moment
    assert torch.allclose(stepped(optimizer, 0.5), by_hand, atol=1e-6)


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("optimizer", ["adam", "sgd", "momentum"])
def test_a_client_steps_as_torchs_own_optimisers_do(optimizer, decay):
    training = replace(TRAINING, lr=0.01, optimizer=optimizer, weight_decay=decay)

    def after(make):
        random = torch.Generator().manual_seed(0)
        weights = [nn.Parameter(torch.randn(size, generator=random)) for size in ((33, 7), (7,), (5,))]
        made = make(training, weights)
        for step in range(5):
            made.zero_grad()
            for place, w in enumerate(weights):
                late = place == 2 and (step == 1 if optimizer == "adam" else True)  # one is not always trained
                w.grad = None if late else torch.randn(w.shape, generator=random)
            made.step()
        return weights

    ours, torchs = after(FusedOptimizer), after(make_optimizer)
    assert all(torch.equal(a, b) for a, b in zip(ours, torchs, strict=True))
    assert not torch.equal(ours[0], after(lambda *_: FusedOptimizer(replace(training, lr=0.02), _[1]))[0])


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "momentum"])
def test_both_engines_decay_alike(images, optimizer):
    given = {"optimizer": optimizer, "lr": 3e-3 if optimizer == "adam" else 0.05}
    decayed = agree(job(images, "fedekd", weight_decay=0.1, **given))
    assert differ(decayed, serially(job(images, "fedekd", **given)))


def test_no_decay_is_training_as_it_was(images):
    plain, zero = serially(job(images)), serially(job(images, weight_decay=0))
    assert not differ(plain, zero)


def test_weights_that_a_step_does_not_train_do_not_decay(images):
    """FedRep trains the head first and the body afterwards."""
    agree(job(images, "fedrep", weight_decay=0.1))
    engine = Serial(job(images, "fedrep", weight_decay=0.1))
    before = engine.clients[0].weights("private")
    step = engine.method.steps(0)[0]
    engine.clients[0].perform(step, 0)
    after = engine.clients[0].weights("private")
    assert {n for n in before if not torch.equal(before[n], after[n])} == set(engine.clients[0]._part("private", step))


# --- the learning rate, round by round -----------------------------------------------------------------------


def test_the_cosine_falls_from_the_whole_rate_and_still_learns_in_the_last_round():
    falling = replace(TRAINING, rounds=4, lr=0.8, lr_schedule="cosine")
    assert [falling.at(round).lr for round in range(4)] == pytest.approx([0.8, 0.6828427, 0.4, 0.1171573])
    assert falling.at(None).lr == 0.8
    assert replace(falling, lr_schedule="constant").at(3).lr == 0.8
    assert falling.of(Train(("private",), lambda batch: batch, lr=0.1)).at(2).lr == pytest.approx(0.05)


@dataclass(frozen=True)
class Telling(FedAvg):
    """Remembers the rate that its functions see; the second training has a rate of its own."""

    reads_weights = ("private",)

    def steps(self, round):
        own = Train(("private",), self.loss, lr=0.5, optimizer="sgd", gradients=True)
        return Train(("private",), self.loss), Remember(self.told), Exchange("private"), own, Remember(self.own)

    def begin(self, client):
        return {"lr": torch.zeros(()), "own": torch.zeros(())}

    def loss(self, batch):
        return batch.supervised("private") * 0 + batch.lr * sum(w.sum() for w in batch.weights["private"].values())

    def told(self, batch):
        return {"lr": torch.as_tensor(batch.lr)}

    def own(self, batch):
        """The loss's slope is the rate."""
        return {"own": next(iter(batch.gradients["private"].values())).flatten()[0]}

    def personalise(self):
        return (Remember(self.told),)


@pytest.mark.parametrize("kind", [Serial, lambda one: Stacked([one])])
def test_the_rate_that_a_method_sees_is_the_one_in_force(images, kind):
    one = job(images, Telling(), lr_schedule="cosine", rounds=4, lr=0.8)
    engine, seen = kind(one), []
    for _ in range(4):
        engine.round()
        seen.append([(float(c.memory["lr"]), float(c.memory["own"])) for c in engine.clients_of(0)])
    rates = (1.0, 0.8535534, 0.5, 0.1464466)
    for found, rate in zip(seen, rates, strict=True):
        assert found == [pytest.approx((0.8 * rate, 0.5 * rate))] * 3
    with engine.personalised():
        assert [float(c.memory["lr"]) for c in engine.clients_of(0)] == pytest.approx([0.8] * 3)


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [*product(["fedekd", "apfl-adaptive"], ["adam", "sgd", "momentum"]), ("pfedme", "sgd")],  # which is always pFedMe's
)
def test_the_rate_falls_alike_in_both_engines(images, name, optimizer):
    given = {"optimizer": optimizer, "lr": 3e-3 if optimizer == "adam" else 0.05, "rounds": 2, "epochs": 1}
    falling = agree(job(images, name, lr_schedule="cosine", **given))
    assert differ(falling, serially(job(images, name, **given)))


@pytest.mark.parametrize("kind", [Serial, lambda one: Stacked([one])])
def test_a_round_on_the_cosine_is_a_round_with_that_rate(images, kind):
    falling, constant = job(images, lr_schedule="cosine", rounds=2), job(images, rounds=2)
    engine, first, lower = kind(falling), kind(constant), kind(job(images, rounds=2, lr=TRAINING.lr / 2))
    engine.round()
    first.round()
    assert not differ(found(engine), found(first))
    lower.restore(copy.deepcopy(engine.state()))
    engine.round()
    lower.round()
    assert not differ(found(engine), found(lower))


def test_tuning_before_an_answer_has_the_whole_rate(images):
    """It belongs to no round; on the cosine it would end with nothing."""
    one = job(images, "fedavg-tuned", lr_schedule="cosine")
    for engine in (Serial(one), Stacked([one])):
        weights_of(engine, one)
        before = found(engine)
        with engine.personalised():
            moved = [max(float((a["private"][n] - b["private"][n]).abs().max()) for n in a["private"])
                     for a, b in zip(found(engine), before, strict=True)]  # fmt: skip
        assert min(moved) > TRAINING.lr / 2


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "momentum"])
def test_a_rate_that_a_graph_would_read_falls_too(images, optimizer, monkeypatch):
    """On a GPU the rate is a tensor, which lies where the captured graphs look for it; here without graphs."""
    make, rates = Chunk.__init__, []

    def as_on_a_gpu(chunk, engine, *args):
        engine.graphs = True
        make(chunk, engine, *args)
        engine.graphs = False
        rates.append(chunk.lr)

    monkeypatch.setattr(Chunk, "__init__", as_on_a_gpu)
    given = {"optimizer": optimizer, "lr": 3e-3 if optimizer == "adam" else 0.05}
    agree(job(images, "fedekd", lr_schedule="cosine", weight_decay=0.01, **given))
    assert len(rates) == 2, "the chunks of the first round are those of all"
    assert [float(rate) for rate in rates] == pytest.approx([given["lr"] / 4] * 2)
    assert all(isinstance(rate, torch.Tensor) for rate in rates)


# --- flips and crops -----------------------------------------------------------------------------------------


def by_hand(image, draws):
    """One image [C, H, W]: a crop of it with a border of its edge pixels, and mirrored."""
    _, height, width = image.shape
    high, wide = (height + 4) // 8, (width + 4) // 8
    bordered = torch.from_numpy(np.pad(image.numpy(), ((0, 0), (high, high), (wide, wide)), mode="edge"))
    top, left = int(draws[1] * (2 * high + 1)), int(draws[2] * (2 * wide + 1))
    cropped = bordered[:, top : top + height, left : left + width]
    return cropped.flip(-1) if draws[0] < 0.5 else cropped


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 8, 8), (2, 20, 9), (1, 3, 1)])
def test_an_image_is_cropped_from_a_wider_one_and_mirrored(shape):
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 255, (2, 20, *shape), dtype=torch.uint8, generator=draw)
    draws = torch.rand(2, 20, MOVES, generator=draw)
    draws[0, 0], draws[0, 1] = 0.0, torch.nextafter(torch.tensor(1.0), torch.tensor(0.0))
    found = flip_crop(images, draws)
    assert found.dtype == torch.uint8
    for stack, drawn, made in zip(images, draws, found, strict=True):
        assert all(torch.equal(by_hand(i, d), m) for i, d, m in zip(stack, drawn, made, strict=True))


def test_the_border_is_four_pixels_of_28_and_of_32():
    for side in (28, 32):
        image = torch.arange(side).view(1, 1, 1, side).expand(1, 1, side, side)
        ends = [int(flip_crop(image, torch.tensor([[0.9, 0.5, at]]))[0, 0, 0, side // 2]) for at in (0.0, 0.5, 0.999)]
        assert [end - side // 2 for end in ends] == [-4, 0, 4]


def test_augmentations_are_drawn_as_batches_are():
    given = {"n": 50, "epochs": 2, "batch_size": 16, "draws": 1}
    plain, first, again = (schedule(0, 3, "private", 1, augment=a, **given) for a in (False, True, True))
    assert plain.moves.shape == (2, 50, 0)
    assert first.moves.shape == (2, 50, MOVES)
    assert (first.moves == again.moves).all()
    assert (first.order == plain.order).all()
    assert (first.uniform == plain.uniform).all()
    others = [
        schedule(*key, augment=True, **given).moves
        for key in ((1, 3, "private", 1), (0, 4, "private", 1), (0, 3, "proxy", 1), (0, 3, "private", 2))
    ]
    others += [schedule(0, 3, "private", 1, augment=True, again=1, **given).moves, first.moves[::-1]]
    assert not any((first.moves == other).all() for other in others)


@pytest.mark.parametrize(
    "name", ["local", "fedekd", "fml", "fedrod", "fedgh", "fedtype", "moon", "ditto", "fedrep", "fedavg-tuned"]
)
def test_both_engines_augment_alike(images, name):
    given = {"optimizer": "sgd", "lr": 0.02, "rounds": 2, "epochs": 1}
    augmented = agree(job(images, name, augment="flip-crop", **given))
    assert differ(augmented, serially(job(images, name, **given)))


def test_chunks_of_unequal_clients_augment_alike(digits):
    uneven = federate(digits, clients=5, alpha=0.5, seed=2)
    one = job(uneven, "fedekd", augment="flip-crop", optimizer="sgd", lr=0.02, rounds=2)
    stacked = Stacked([one], chunk=2)
    stacked.stacks[0].shrink_stages = 2
    for a, b in zip(weights_of(stacked, one), serially(one), strict=True):
        assert all(torch.allclose(a[role][n], w, atol=2e-4) for role in b for n, w in b[role].items())


@dataclass(frozen=True)
class Watching(Local):
    """Trains against a copy of itself that stays, and holds what a teacher gave beside what it should give."""

    roles = ("private", "teacher")
    like = MappingProxyType({"teacher": "private"})
    reads_weights = ("teacher",)
    split: str = "train"
    mixed: bool = False

    def steps(self, round):
        return (Train(("private",), self.loss, ("teacher",), split=self.split, gradients=True, mixed=self.mixed),)

    def loss(self, batch):
        apart = (batch.outputs["teacher"] - batch.apply("teacher", batch.weights["teacher"])).abs()
        wrong = batch.mean(apart if apart.dim() == 1 else apart.sum(1))
        return batch.supervised("private") + 1e3 * wrong.detach() * batch.outputs["private"].sum() + batch.x.sum() * 0


@dataclass(frozen=True)
class Mixing(Local):
    """Local on mixed rows, as if each had its first row's label."""

    def steps(self, round):
        return (Train(("private",), self.loss, mixed=True),)


@pytest.mark.parametrize("rows", ["images", "tables"])
def test_a_teacher_sees_mixed_rows_as_its_student_does(rows, request):
    federation, given = request.getfixturevalue(rows), {"optimizer": "sgd", "lr": 0.02, "rounds": 2}
    watched, alone = agree(job(federation, Watching(mixed=True), **given)), agree(job(federation, Mixing(), **given))
    for ours, theirs in zip(watched, alone, strict=True):
        assert all(torch.allclose(ours["private"][n], w, atol=1e-2) for n, w in theirs["private"].items())
    assert differ(alone, serially(job(federation, **given)))


def test_chunks_of_unequal_clients_mix_alike(digits):
    uneven = federate(digits, clients=5, alpha=0.5, seed=2)
    one = job(uneven, Watching(mixed=True), optimizer="sgd", lr=0.02, rounds=2, epochs=2)
    stacked = Stacked([one], chunk=2)
    stacked.shrink_stages = 2
    for a, b in zip(weights_of(stacked, one), serially(one), strict=True):
        assert all(torch.allclose(a[role][n], w, atol=2e-4) for role in b for n, w in b[role].items())


def test_rows_are_mixed_with_rows_of_the_same_client():
    given = {"n": 7, "epochs": 200, "batch_size": 16, "draws": 0}
    plain, one, again = (schedule(0, 3, "private", 1, mixed=m, **given) for m in (False, True, True))
    assert set(one.partners.ravel()) == set(range(7))
    assert one.moves.shape == (200, 7, MIXES)
    assert (one.partners == again.partners).all()
    assert (one.order == plain.order).all()
    assert plain.partners.size == 0


def test_half_of_the_mixed_images_are_blends_and_half_have_a_patch():
    black, white = torch.zeros(2000, 1, 8, 8), torch.ones(2000, 1, 8, 8)
    draws = torch.rand(2000, MIXES, generator=torch.Generator().manual_seed(0))
    out = mixed(black, white, draws)
    patched = draws[:, 0] >= 0.5
    assert 900 < int(patched.sum()) < 1100
    torch.testing.assert_close(out[~patched], draws[~patched, 1].view(-1, 1, 1, 1).expand(-1, 1, 8, 8))
    assert set(out[patched].unique().tolist()) == {0.0, 1.0}
    share = out[patched].mean()  # a half of what is drawn, less what would lie beyond the border
    assert 0.25 < float(share) < 0.5
    corner = mixed(black[:1], white[:1], torch.tensor([[0.9, 0.25, 0.0, 0.0, 0.5, 0.5]]))[0, 0]
    assert int(corner.sum()) == 4
    assert bool(corner[:2, :2].all())


def test_two_images_that_are_mixed_are_moved_together():
    image = torch.arange(64.0).view(1, 1, 8, 8)
    down = mixed(image, image, torch.tensor([[0.1, 0.5, 0.5, 0.5, 0.99, 0.5]]))
    assert (down[..., :-1, :] == image[..., 1:, :]).all()
    across = mixed(image, image, torch.tensor([[0.9, 0.5, 0.5, 0.5, 0.5, 0.0]]))
    assert (across[..., 1:] == image[..., :-1]).all()


def test_rows_of_a_table_are_blended_column_by_column_alike():
    rows, others = torch.zeros(2, 3), torch.tensor([[1.0, 2.0, 4.0]]).expand(2, 3)
    out = mixed(rows, others, torch.tensor([[0.9, 0.5, 0.1, 0.1, 0.9, 0.9], [0.1, 0.0, 0.1, 0.1, 0.9, 0.9]]))
    assert out.tolist() == [[0.5, 1.0, 2.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize("augment", ["none", "flip-crop"])
def test_a_teacher_sees_what_its_student_sees(images, augment):
    """Its outputs are computed beforehand; were they of other images, the weights would fly away."""
    given = {"augment": augment, "optimizer": "sgd", "lr": 0.02, "rounds": 2}
    watched, alone = agree(job(images, Watching(), **given)), serially(job(images, **given))
    for ours, theirs in zip(watched, alone, strict=True):
        assert all(torch.allclose(ours["private"][n], w, atol=1e-2) for n, w in theirs["private"].items())


@pytest.mark.parametrize("kind", [Serial, lambda one: Stacked([one])])
def test_only_training_rows_are_augmented(images, kind):
    """Neither what is measured nor what is trained on validation rows."""
    engine, plain = (kind(job(images, augment=augment)) for augment in ("flip-crop", "none"))
    assert engine.evaluate() == plain.evaluate()
    given = {"optimizer": "sgd", "lr": 0.02, "rounds": 1}
    ours, theirs = (job(images, Watching("val"), augment=augment, **given) for augment in ("flip-crop", "none"))
    assert not differ(weights_of(kind(ours), ours), weights_of(kind(theirs), theirs))


def test_two_methods_on_one_seed_see_the_same_augmented_images(images):
    """Without its teacher FedeKD is Local, to the bit."""
    joined = serially(job(images, methods.get("fedekd", lambda_kd=0.0), augment="flip-crop"))
    alone = serially(job(images, "local", augment="flip-crop"))
    for ours, theirs in zip(joined, alone, strict=True):
        assert all(torch.equal(ours["private"][n], w) for n, w in theirs["private"].items())


def test_a_table_cannot_be_flipped(tables):
    with pytest.raises(
        FedekdError, match="'diabetes' is a table, which cannot be flipped and cropped; leave augment out"
    ):
        job(tables, augment="flip-crop")


def test_an_interrupted_run_goes_on_to_the_same_bits(images):
    one = job(images, "fedekd", augment="flip-crop", lr_schedule="cosine", weight_decay=0.01)
    for kind in (Serial, lambda one: Stacked([one])):
        through, first, second = kind(one), kind(one), kind(one)
        first.round()
        second.restore(copy.deepcopy(first.state()))
        for _ in range(2):
            second.round()
        assert not differ(weights_of(through, one), found(second))
