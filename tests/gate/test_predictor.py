"""Stage II: who sees what, whitening, and every term of the loss against a slow explicit one."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sageplan.data.normaliser import Normaliser
from sageplan.data.windows import Batch
from sageplan.diagnostics.corruption import derangement
from sageplan.gate.config import Stage2
from sageplan.gate.encoder import Encoder
from sageplan.gate.predictor import AUXILIARY_WARMUP, FrozenEncoder, LatentPredictor, PredictorLearner, Whitening

LATENT, ACTIONS, WINDOW = 6, 2, 5
SMALL = {"window": WINDOW, "width": 16, "layers": 2, "heads": 2, "head_hidden": 16, "rollout": 3}
TOKENS = pytest.mark.parametrize("tokens", ["bundled", "separate"])
REDUCTIONS = pytest.mark.parametrize("reduction", ["mean", "sum"])


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def predictor(**settings):
    torch.manual_seed(0)
    made = LatentPredictor(LATENT, ACTIONS, Stage2(**{**SMALL, **settings}))
    with torch.no_grad():
        made.head[-1].weight.mul_(10)  # so that what happens inside shows in the output
    return made.eval()


def plan(count=3, length=WINDOW, seed=0):
    rng = generator(seed)
    return torch.randn(count, length, LATENT, generator=rng), torch.randn(count, length, ACTIONS, generator=rng)


def learner(reduction="mean", **settings):
    torch.manual_seed(0)
    normaliser = Normaliser.fit(np.random.default_rng(0).normal(2, 3, (50, 4)).astype(np.float32))
    encoder = Encoder(4, 8, LATENT)
    with torch.no_grad():
        whitening = Whitening.fit(encoder(torch.randn(500, 4)), "per_dim", 1e-3)
    config = Stage2(**{**SMALL, **settings})
    frozen = FrozenEncoder(normaliser, encoder, whitening)
    return PredictorLearner(config, frozen, predictor(**settings), reduction, None, None)


def batch(count=4, seed=3):
    rng = generator(seed)
    return Batch(
        2 + 3 * torch.randn(count, WINDOW + 1, 4, generator=rng), torch.randn(count, WINDOW, ACTIONS, generator=rng)
    )


def l1(predicted, target, reduction):
    error = (predicted - target).detach().abs().sum()
    return float(error) / (len(predicted) if reduction == "mean" else 1)


# ---- who sees what ---------------------------------------------------------------------------------


@TOKENS
@pytest.mark.parametrize("step", range(WINDOW))
@pytest.mark.parametrize("changed", ["latents", "actions"])
def test_a_prediction_depends_on_all_steps_up_to_its_own_and_on_none_later(tokens, step, changed):
    model = predictor(tokens=tokens)
    inputs = dict(zip(("latents", "actions"), plan(), strict=True))
    delta = model(**inputs) - inputs["latents"]
    inputs[changed][:, step] += 1
    moved = (model(**inputs) - inputs["latents"] != delta).any(-1)
    assert not moved[:, :step].any()
    assert moved[:, step:].all()


@TOKENS
def test_a_shorter_plan_gives_the_same_predictions(tokens):
    model, (latents, actions) = predictor(tokens=tokens), plan()
    whole = model(latents, actions)
    for length in range(1, WINDOW):
        assert torch.allclose(model(latents[:, :length], actions[:, :length]), whole[:, :length], atol=1e-5)


@TOKENS
def test_the_attention_mask_is_block_causal(tokens):
    model, masks = predictor(tokens=tokens), []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda _, inputs: masks.append(inputs[1]))
    model(*plan())
    per_step = 2 if tokens == "separate" else 1
    wanted = [[j // per_step <= i // per_step for j in range(per_step * WINDOW)] for i in range(per_step * WINDOW)]
    assert [m.tolist() for m in masks] == [wanted, wanted]


@TOKENS
def test_position_matters(tokens):
    latents, actions = (x[:, :1].expand(-1, 2, -1) for x in plan())
    delta = predictor(tokens=tokens)(latents, actions) - latents
    assert not torch.allclose(delta[:, 0], delta[:, 1], atol=1e-4)


@TOKENS
def test_the_network_predicts_a_change(tokens):
    model, (latents, actions) = predictor(tokens=tokens), plan()
    nn.init.zeros_(model.head[-1].weight)
    nn.init.zeros_(model.head[-1].bias)
    assert torch.equal(model(latents, actions), latents)


@TOKENS
def test_with_context_step_a_prediction_depends_on_its_own_step_alone(tokens):
    model, (latents, actions) = predictor(tokens=tokens, context="step"), plan()
    predicted = model(latents, actions)
    for step in range(WINDOW):
        alone = model(latents[:, step : step + 1], actions[:, step : step + 1])
        assert torch.allclose(alone[:, 0], predicted[:, step], atol=1e-6)


def test_a_lone_token_is_worth_the_same_by_the_short_way_round_attention():
    """With one token the softmax is 1, so queries and keys need not be computed."""
    block = predictor().blocks[0]
    x = torch.randn(3, 1, 16, generator=generator())
    assert torch.allclose(block(x), block.extend(x, None)[0], atol=1e-6)


def test_the_change_is_in_units_of_its_scale():
    model, (latents, actions) = predictor(), plan()
    change = model(latents, actions) - latents
    model.delta_scale.copy_(torch.arange(1.0, LATENT + 1))
    assert torch.allclose(model(latents, actions) - latents, change * torch.arange(1.0, LATENT + 1), atol=1e-5)


def test_the_scale_of_changes_is_that_of_the_data():
    encoder = learner().encoder
    pairs = torch.randn(500, 2, 4, generator=generator())
    changes = np.stack([(encoder(after) - encoder(before)).numpy() for before, after in pairs])
    found = encoder.delta_std(Batch(pairs, pairs[:, :1]))
    np.testing.assert_allclose(found, changes.std(0, ddof=1), rtol=1e-4)


def test_latents_are_never_rounded_to_half_precision():
    encoder, states = learner().encoder, batch().states
    exact = encoder(states)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(encoder(states), exact)


# ---- whitening -------------------------------------------------------------------------------------


def correlated(count=4000, size=4):
    rng = generator(5)
    return torch.randn(count, size, generator=rng) @ torch.randn(size, size, generator=rng) + 3


def test_per_dimension_whitening_gives_zero_mean_and_unit_deviation():
    latents = correlated()
    white = Whitening.fit(latents, "per_dim", 1e-3)(latents)
    assert white.mean(0).abs().max() < 1e-4
    assert torch.allclose(white.std(0), torch.ones(4), atol=1e-4)
    assert torch.allclose(torch.corrcoef(white.T), torch.corrcoef(latents.T), atol=1e-4)


def test_zca_whitening_gives_an_identity_covariance_and_turns_nothing():
    latents = correlated()
    whitening = Whitening.fit(latents, "zca", 1e-9)
    white = whitening(latents)
    assert white.mean(0).abs().max() < 1e-3
    assert torch.allclose(torch.cov(white.T), torch.eye(4), atol=1e-3)
    assert torch.allclose(whitening.scale, whitening.scale.T, atol=1e-5)
    assert torch.linalg.eigvalsh(whitening.scale).min() > 0


def test_zca_does_not_amplify_directions_below_the_floor():
    latents = torch.randn(4000, 2, generator=generator()) * torch.tensor([10.0, 1e-4])
    white = Whitening.fit(latents, "zca", 1e-2)(latents)
    assert white.std(0)[0].item() == pytest.approx(1, abs=1e-3)
    assert white.std(0)[1].item() == pytest.approx(1e-4, rel=0.1)  # divided by √(1e-2 · 10²) = 1


def test_no_whitening_is_the_identity():
    latents = correlated()
    assert torch.equal(Whitening.fit(latents, "none", 1e-3)(latents), latents)


def test_the_frozen_encoder_normalises_encodes_and_whitens():
    encoder = learner().encoder
    states = batch().states
    wanted = encoder.encoder((states - encoder.normaliser.mean) / encoder.normaliser.std)
    wanted = (wanted - encoder.whitening.mean) * encoder.whitening.scale
    assert torch.allclose(encoder(states), wanted, atol=1e-6)


# ---- the loss --------------------------------------------------------------------------------------


@TOKENS
@REDUCTIONS
def test_the_teacher_forced_term_is_the_mean_one_step_error(tokens, reduction):
    stage, data = learner(reduction, tokens=tokens), batch()
    _, terms = stage.loss(data, 0, generator())
    latents = stage.encoder(data.states)
    errors = [
        l1(stage.predictor(latents[i : i + 1, : t + 1], data.actions[i : i + 1, : t + 1])[0, -1],
           latents[i, t + 1], reduction)
        for i in range(4) for t in range(WINDOW)
    ]  # fmt: skip
    assert terms["teacher_forced"].item() == pytest.approx(np.mean(errors), rel=1e-4)


@TOKENS
@REDUCTIONS
@pytest.mark.parametrize("rollout", [1, 2, 4, WINDOW])
@pytest.mark.parametrize("context", ["plan", "step"])
def test_the_rollout_term_feeds_predictions_back_and_compares_the_last(tokens, reduction, rollout, context):
    stage, data = learner(reduction, tokens=tokens, rollout=rollout, context=context), batch()
    _, terms = stage.loss(data, 0, generator())
    latents = stage.encoder(data.states)
    errors = []
    for i in range(4):
        path = [latents[i, 0]]
        for step in range(rollout):
            now, actions = torch.stack(path)[None], data.actions[i : i + 1, : step + 1]
            path.append(stage.predictor(now, actions)[0, -1])
        errors.append(l1(path[-1], latents[i, rollout], reduction))
    assert terms["rollout"].item() == pytest.approx(np.mean(errors), rel=1e-4)


@REDUCTIONS
def test_the_hinge_uses_whole_sequences_of_other_windows_and_true_latents(reduction):
    stage, data = learner(reduction), batch()
    latents = stage.encoder(data.states)
    other = derangement(4, generator(9))
    assert (other != torch.arange(4)).all()
    errors = []
    for i in range(4):
        predicted = stage.predictor(latents[i : i + 1, :-1], data.actions[other[i]][None])[0]
        errors.append(np.mean([l1(predicted[t], latents[i, t + 1], reduction) for t in range(WINDOW)]))
    margin = float(np.sort(errors)[1:3].mean())  # two windows below, two above
    stage = learner(reduction, margin=margin)
    _, terms = stage.loss(data, 0, generator(9))
    assert terms["hinge_active"].item() == 0.5
    wanted = np.mean(np.maximum(0, margin - np.array(errors)))
    assert terms["hinge"].item() == pytest.approx(wanted, rel=1e-3)


def test_the_terms_are_weighted_and_added():
    stage = learner(rollout_weight=0.5, negative_weight=2.0, margin=1e3)
    total, terms = stage.loss(batch(), 0, generator())
    assert terms["hinge_active"] == 1
    wanted = terms["teacher_forced"] + 0.5 * terms["rollout"] + 2 * terms["hinge"]
    assert total.item() == pytest.approx(wanted.item(), rel=1e-6)
    assert total.requires_grad


def test_an_inactive_hinge_is_zero_and_adds_nothing():
    total, terms = learner(margin=0.0).loss(batch(), 0, generator())
    assert terms["hinge"] == terms["hinge_active"] == 0
    assert total.item() == pytest.approx((terms["teacher_forced"] + terms["rollout"]).item(), rel=1e-6)


def test_the_hinge_is_evaluated_at_first_always_and_then_now_and_then():
    stage, data = learner(auxiliary_every=7), batch()
    steps = [step for step in range(AUXILIARY_WARMUP + 22) if "hinge" in stage.loss(data, step, generator())[1]]
    assert steps == [*range(AUXILIARY_WARMUP), 105, 112, 119]
    assert "hinge" not in learner(negative_weight=0.0).loss(data, 0, generator())[1]


def test_only_the_predictor_learns():
    stage = learner(margin=1e3)
    stage.train()
    total, _ = stage.loss(batch(), 0, generator())
    total.backward()
    assert all(p.grad is None and not p.requires_grad for p in stage.encoder.parameters())
    assert {n for n, p in stage.named_parameters() if p.requires_grad} == {
        f"predictor.{n}" for n, _ in stage.predictor.named_parameters()
    }
    assert all(p.grad is not None and p.grad.any() for p in (stage.predictor.kind, stage.predictor.position))


def test_held_out_metrics_by_hand():
    stage, data = learner(), batch(64)

    class Same:
        def sample(self, count, generator):
            return data

    stage._held_out = Same()
    metrics = stage.evaluate(generator(4))
    with torch.no_grad():
        latents = stage.encoder(data.states)
        error = (stage.predictor(latents[:, :-1], data.actions) - latents[:, 1:]).abs().mean()
    assert metrics["held_out_error"] == pytest.approx(float(error), rel=1e-4)
    assert metrics["held_out_no_change"] == pytest.approx(float((latents[:, 1:] - latents[:, :-1]).abs().mean()))
    assert 0 <= metrics["held_out_auroc"] <= 1


# ---- derangements ----------------------------------------------------------------------------------


@given(st.integers(2, 200), st.integers(0, 2**32))
def test_a_derangement_is_a_permutation_without_fixed_points(count, seed):
    permutation = derangement(count, generator(seed))
    assert sorted(permutation.tolist()) == list(range(count))
    assert (permutation != torch.arange(count)).all()


def test_derangements_are_drawn_from_the_generator():
    assert torch.equal(derangement(50, generator(1)), derangement(50, generator(1)))
    assert not torch.equal(derangement(50, generator(1)), derangement(50, generator(2)))
    partners = torch.stack([derangement(4, generator(seed)) for seed in range(600)])
    for place in range(4):
        counts = torch.bincount(partners[:, place], minlength=4)
        assert counts[place] == 0
        assert counts[counts > 0].min() > 140  # a third of 600 each
