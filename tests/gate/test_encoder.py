"""Stage I: the objective by hand, masks, targets, the teacher."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from sageplan.data.normaliser import Normaliser
from sageplan.data.windows import Batch, Windows
from sageplan.errors import TrainingError
from sageplan.gate.config import Stage1
from sageplan.gate.encoder import Encoder, EncoderLearner, OffsetPredictor, effective_rank, mask_view, vicreg
from sageplan.training.config import Optimiser
from sageplan.training.loop import train
from sageplan.training.progress import Bars
from sageplan.types import Trajectories

SMALL = {"latent": 8, "hidden": 16, "window": 4, "max_offset": 3, "offsets": 2, "layers": 1, "heads": 2}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def learner(states=None, **settings):
    config = Stage1(**{**SMALL, **settings})
    if states is None:
        states = np.random.default_rng(0).standard_normal((200, 3)).astype(np.float32)
    data = Trajectories.from_arrays(states, states[:, :1])
    windows = Windows(data, EncoderLearner.window_length(config))
    torch.manual_seed(0)
    return EncoderLearner(config, Normaliser.fit(data.states), windows, windows)


# ---- the objective ---------------------------------------------------------------------------------


def test_vicreg_by_hand():
    predicted = torch.tensor([[1.0, 0.0], [3.0, 4.0], [2.0, 2.0]])  # variances 1 and 4, covariance 2
    variance, covariance = vicreg(predicted, target=1.5, epsilon=0.0)
    assert variance.item() == pytest.approx((0.5 + 0) / 2)
    assert covariance.item() == pytest.approx((2**2 + 2**2) / 2)
    variance, _ = vicreg(predicted, target=3.0, epsilon=0.44)
    assert variance.item() == pytest.approx(((3 - math.sqrt(1.44)) + (3 - math.sqrt(4.44))) / 2)


def test_vicreg_of_collapsed_predictions():
    variance, covariance = vicreg(torch.full((6, 4), 7.0), target=1.0, epsilon=1e-4)
    assert variance.item() == pytest.approx(1 - 0.01)
    assert covariance.item() == 0


def test_vicreg_is_computed_in_full_precision():
    predicted = torch.randn(64, 4, generator=generator())
    wanted = vicreg(predicted, 2.0, 1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(torch.stack(vicreg(predicted, 2.0, 1e-4)), torch.stack(wanted))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_similarity_is_a_mean_over_batch_and_offsets_and_a_sum_over_views(reduction):
    batch, offsets, size = 3, 2, 8
    predicted = torch.randn(2 * batch, offsets, size, generator=generator(1))
    target = torch.randn(batch, offsets, size, generator=generator(2))
    wanted = 0.0
    for view in range(2):
        for i in range(batch):
            for k in range(offsets):
                error = ((predicted[view * batch + i, k] - target[i, k]) ** 2).sum() / batch / offsets
                wanted += float(error) / (size if reduction == "mean" else 1)
    stage = learner(similarity_reduction=reduction, variance_weight=2.0, covariance_weight=0.3)
    total, terms = stage.objective(predicted, target)
    assert terms["similarity"].item() == pytest.approx(wanted, rel=1e-5)
    variance, covariance = vicreg(predicted.reshape(-1, size), 1.0, 1e-4)
    assert torch.equal(torch.stack([terms["variance"], terms["covariance"]]), torch.stack([variance, covariance]))
    assert total.item() == pytest.approx(wanted + 2 * variance.item() + 0.3 * covariance.item(), rel=1e-5)


def test_targets_are_the_uncorrupted_states_after_the_window(monkeypatch):
    rows = np.arange(1, 41, dtype=np.float32)
    stage = learner(np.stack([rows, -rows], 1), latent=2, heads=1, feature_mask=0.9, time_mask=0.5)
    stage.normaliser = stage.teacher = nn.Identity()
    seen = {}
    stage.predictor.register_forward_pre_hook(lambda _, inputs: seen.update(offsets=inputs[1].tolist()))
    monkeypatch.setattr(stage, "objective", lambda predicted, target: seen.update(target=target))
    drawn = set()
    for seed in range(20):
        batch = stage.sample(5, generator(seed))
        stage.loss(batch, 0, generator(seed))
        assert len(set(seen["offsets"])) == len(seen["offsets"]) == 2
        drawn |= set(seen["offsets"])
        for number, k in enumerate(seen["offsets"]):
            assert torch.equal(seen["target"][:, number], batch.states[:, 4 - 1 + k])
    assert drawn == {1, 2, 3}


def test_the_context_is_two_different_maskings_of_the_window():
    stage = learner()
    seen = []
    stage.encoder.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    batch = stage.sample(6, generator())
    stage.loss(batch, 0, generator())
    first, second = seen[0].view(2, 6, 4, 3)
    window = stage.normaliser(batch.states[:, :4])
    assert not torch.equal(first, second)
    for view in (first, second):
        assert torch.equal(view[view != 0], window[view != 0])
        assert 0 < (view == 0).float().mean() < 1


# ---- masks -----------------------------------------------------------------------------------------


def test_feature_masks_zero_their_share_of_entries_and_leave_the_rest():
    states = 1 + torch.rand(400, 16, 10, generator=generator())
    masked = mask_view(states, 0.3, 0.0, generator(1))
    zero = masked == 0
    assert zero.float().mean().item() == pytest.approx(0.3, abs=0.01)
    assert torch.equal(masked[~zero], states[~zero])
    assert zero.float().mean((0, 1)).sub(0.3).abs().max() < 0.03  # each feature alike
    assert zero.float().mean((0, 2)).sub(0.3).abs().max() < 0.03  # each step alike
    assert (zero[:, 1:] != zero[:, :-1]).any()  # drawn anew per step


def test_time_masks_zero_their_share_of_whole_steps():
    states = 1 + torch.rand(1000, 16, 10, generator=generator())
    zero = mask_view(states, 0.0, 0.1, generator(1)) == 0
    assert torch.equal(zero.all(2), zero.any(2))
    assert zero[..., 0].float().mean().item() == pytest.approx(0.1, abs=0.01)
    assert not zero.all(2).all(1).any()  # drawn for each step, not for a window


def test_both_masks_together_are_independent():
    zero = mask_view(torch.ones(1000, 16, 10), 0.3, 0.1, generator(1)) == 0
    assert zero.float().mean().item() == pytest.approx(1 - 0.7 * 0.9, abs=0.01)


def test_without_masks_nothing_changes():
    states = torch.randn(4, 5, 6, generator=generator())
    assert torch.equal(mask_view(states, 0.0, 0.0, generator()), states)


# ---- networks --------------------------------------------------------------------------------------


def test_the_encoder_takes_each_state_by_itself():
    torch.manual_seed(0)
    encoder = Encoder(3, 16, 8).eval()
    states = torch.randn(2, 5, 3, generator=generator())
    latents = encoder(states)
    assert latents.shape == (2, 5, 8)
    changed = states.clone()
    changed[:, 2] += 1
    moved = (encoder(changed) != latents).any(-1)
    assert moved.tolist() == [[False, False, True, False, False]] * 2
    assert torch.allclose(encoder(states[1, 3]), latents[1, 3], atol=1e-6)


def linear_share(encoder, states):
    """R² of the best linear map from states to latents."""
    with torch.no_grad():
        latents = encoder(states)
    inputs = torch.cat([states, torch.ones(len(states), 1)], 1)
    rest = latents - inputs @ torch.linalg.lstsq(inputs, latents).solution
    return 1 - float(rest.var(0).sum() / latents.var(0).sum())


def test_spread_biases_make_the_encoder_begin_close_to_linear_and_on_the_usual_scale():
    torch.manual_seed(0)
    states = torch.randn(2_000, 5, generator=generator())
    usual, spread = Encoder(5, 128, 16), Encoder(5, 128, 16, bias_spread=2.0)
    assert linear_share(usual, states) < 0.9
    assert linear_share(spread, states) > 0.95
    with torch.no_grad():
        latents = spread(states)
    assert latents.mean(0).abs().max() < 0.2
    assert 0.8 < float(latents.std(0).mean()) < 1.2


def test_predictions_depend_on_the_context_and_on_their_offset():
    torch.manual_seed(0)
    predictor = OffsetPredictor(Stage1(**SMALL)).eval()
    context = torch.randn(2, 4, 8, generator=generator())
    out = predictor(context, torch.tensor([1, 3]))
    assert out.shape == (2, 2, 8)
    assert torch.allclose(out.flip(1), predictor(context, torch.tensor([3, 1])), atol=1e-6)
    assert not torch.allclose(out[:, 0], out[:, 1], atol=1e-4)
    for step in range(4):
        changed = context.clone()
        changed[:, step, 0] += 1
        assert (predictor(changed, torch.tensor([1, 3])) != out).any()


# ---- the teacher -----------------------------------------------------------------------------------


def test_the_momentum_rises_along_a_cosine():
    stage = learner(momentum=(0.9, 1.0))
    assert [stage.momentum(p) for p in (0, 0.5, 1)] == pytest.approx([0.9, 0.95, 1.0])
    assert stage.momentum(0.25) == pytest.approx(1 - 0.1 * (1 + math.cos(math.pi / 4)) / 2)
    paper = learner().momentum
    assert (paper(0), paper(1)) == pytest.approx((0.99, 0.9999))


def test_the_teacher_starts_as_the_encoder_and_gets_no_gradient():
    stage = learner()
    for own, teacher in zip(stage.encoder.parameters(), stage.teacher.parameters(), strict=True):
        assert torch.equal(own, teacher)
        assert own.data_ptr() != teacher.data_ptr()
    loss, _ = stage.loss(stage.sample(8, generator()), 0, generator())
    loss.backward()
    assert all(p.grad is None and not p.requires_grad for p in stage.teacher.parameters())
    assert all(p.grad is not None and p.grad.any() for p in stage.encoder.parameters())
    assert all(p.grad is not None for p in stage.predictor.parameters())


def test_one_step_moves_the_teacher_by_the_moving_average(tmp_path):
    stage = learner(momentum=(0.0, 0.75))
    before = [p.clone() for p in stage.teacher.parameters()]
    train(
        stage, Optimiser(steps=1, batch=8, rate=0.1, warmup=0), tmp_path / "run",
        device=torch.device("cpu"), seed=0, identity="", bars=Bars(False),
    )  # fmt: skip
    for old, new, own in zip(before, stage.teacher.parameters(), stage.encoder.parameters(), strict=True):
        assert not torch.equal(old, own)
        assert torch.allclose(new, 0.75 * old + 0.25 * own, atol=1e-7)


# ---- collapse --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spread", "rank"),
    [([1, 1, 1, 1], 4.0), ([1, 0, 0, 0], 1.0), ([2, 2, 0, 0], 2.0), ([0, 0, 0, 0], 1.0),
     ([3, 1], math.exp(-(0.9 * math.log(0.9) + 0.1 * math.log(0.1))))],
)  # fmt: skip
def test_effective_rank_of_known_spectra(spread, rank):
    size = len(spread)
    corners = torch.cat([torch.eye(size), -torch.eye(size)]) * torch.tensor(spread)
    turn = torch.linalg.qr(torch.randn(size, size, generator=generator()))[0]
    assert effective_rank(corners @ turn + 5) == pytest.approx(rank, rel=1e-4)


def test_a_healthy_teacher_is_let_through():
    stage = learner()
    metrics = stage.evaluate(generator())
    assert set(metrics) == {"teacher_std", "teacher_rank"}
    stage.check(metrics)


@pytest.mark.parametrize("kind", ["constant", "tiny", "one direction"])
def test_a_collapsed_teacher_is_an_error(kind):
    stage = learner()
    last = stage.teacher[-1]
    with torch.no_grad():
        if kind == "one direction":
            last.weight.copy_(torch.ones(8, 1) * last.weight[:1])
        else:
            last.weight.mul_(0 if kind == "constant" else 1e-3)
    with pytest.raises(TrainingError, match="Stage I collapsed: teacher latents have standard deviation"):
        stage.check(stage.evaluate(generator()))


def test_collapse_stops_the_training(tmp_path):
    stage = learner(momentum=(1.0, 1.0))
    with torch.no_grad():
        stage.teacher[-1].weight.zero_()
    with pytest.raises(TrainingError, match="collapsed"):
        train(
            stage, Optimiser(steps=3, batch=8), tmp_path / "run",
            device=torch.device("cpu"), seed=0, identity="", bars=Bars(False),
        )  # fmt: skip


def test_a_gate_batch_needs_room_for_the_furthest_offset():
    assert EncoderLearner.window_length(Stage1()) == 21
    assert learner().sample(2, generator()).states.shape == (2, 7, 3)
    assert isinstance(learner().sample(2, generator()), Batch)


def test_held_out_windows_alone_are_evaluated():
    config = Stage1(**SMALL)
    rng = np.random.default_rng(0)
    data = [
        Trajectories.from_arrays(s, s[:, :1])
        for s in (rng.standard_normal((50, 3)).astype(np.float32), np.ones((50, 3), np.float32))
    ]
    stage = EncoderLearner(config, Normaliser.fit(data[0].states), *(Windows(d, 7) for d in data))
    assert stage.evaluate(generator())["teacher_std"] == pytest.approx(0, abs=1e-6)
