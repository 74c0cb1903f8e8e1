"""Fitting as a whole: refusals, run folders, resuming, determinism, held-out episodes."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from sageplan import PRESETS, Gate, GateConfig, InverseDynamics, Optimiser, Stage1, Stage2, Trajectories
from sageplan.diffusion.inverse_dynamics import InverseDynamicsLearner
from sageplan.errors import ConfigError, DataError, TrainingError
from sageplan.gate import fit as fit_module
from sageplan.gate.encoder import EncoderLearner
from sageplan.gate.predictor import PredictorLearner

STEPS = 20
OPTIMISER = Optimiser(steps=STEPS, batch=8, rate=1e-3, warmup=5)
MICRO = GateConfig(
    stage1=Stage1(latent=8, hidden=16, window=3, max_offset=2, offsets=1, layers=1, heads=2, optimiser=OPTIMISER),
    stage2=Stage2(window=3, width=16, layers=1, heads=2, head_hidden=16, rollout=2, optimiser=OPTIMISER),
    inverse_dynamics=InverseDynamics(hidden=8, steps=3, optimiser=OPTIMISER),
    held_out=0.3,
)
NEEDED = 5  # rows: a window and the furthest offset


def toy(*lengths, seed=0, state_dim=2):
    """A walk: each state is the one before plus the action. The last state is the number of the episode."""
    rng = np.random.default_rng(seed)
    made = []
    for number, length in enumerate(lengths):
        actions = rng.uniform(-1, 1, (length, state_dim)).astype(np.float32)
        states = np.cumsum(np.concatenate([np.zeros((1, state_dim)), actions[:-1]]), 0)
        made.append((np.c_[states, np.full(length, number)], actions))
    return Trajectories.from_episodes(made, name="toy")


DATA = toy(*[12] * 10)


def fit(data=DATA, config=MICRO, **options):
    return Gate.fit(data, config, **{"device": "cpu", "progress": False, **options})


def weights(gate):
    return {name: value.clone() for name, value in gate.modules().state_dict().items()}


def same(one, other):
    assert one.keys() == other.keys()
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def fitted():
    return weights(fit())


# ---- refusals --------------------------------------------------------------------------------------


def test_an_unknown_preset_lists_the_known_ones():
    with pytest.raises(ConfigError, match=f"there is no preset 'fast'; choose one of {', '.join(PRESETS)}"):
        fit(config="fast")


def test_actions_that_never_vary_are_refused(tmp_path):
    data = dataclasses.replace(DATA, actions=np.full_like(DATA.actions, 0.5))
    with pytest.raises(DataError, match=r"toy: the actions never vary \(all 2 dimensions are constant\)"):
        fit(data, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_one_action_dimension_that_varies_is_enough():
    actions = DATA.actions.copy()
    actions[:, 1] = 0.5
    gate = fit(dataclasses.replace(DATA, actions=actions))
    assert gate.action_dim == 2
    assert np.isfinite(gate.energy(DATA.states[None, :5], prefix=4)).all()


def test_too_short_episodes_are_refused_before_training():
    message = rf"none of 7 episodes is long enough: the longest has 4 rows, a window needs {NEEDED} \(5 states"
    with pytest.raises(DataError, match=message):
        fit(toy(*[4] * 10))
    with pytest.raises(DataError, match=r"the longest has 8 rows, a window needs 9 \(5 states, stride 2\)"):
        fit(toy(*[8] * 10), dataclasses.replace(MICRO, stride=2))


def test_stage_two_too_is_checked_before_anything_is_trained(tmp_path):
    config = dataclasses.replace(MICRO, stage2=dataclasses.replace(MICRO.stage2, window=12))
    with pytest.raises(DataError, match="the longest has 12 rows, a window needs 13"):
        fit(config=config, run_dir=tmp_path / "run")
    assert not (tmp_path / "run" / "stage1").exists()


def test_one_episode_cannot_be_held_out():
    with pytest.raises(DataError, match="toy: one episode cannot be split into training and held-out episodes"):
        fit(toy(100))


def test_states_that_never_vary_are_a_collapse():
    with pytest.raises(TrainingError, match="Stage I collapsed"):
        fit(dataclasses.replace(DATA, states=np.ones_like(DATA.states)))


def test_states_of_one_dimension_are_not_a_collapse():
    gate = fit(dataclasses.replace(DATA, states=np.ascontiguousarray(DATA.states[:, :1])))
    assert gate.state_dim == 1


def test_an_output_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(ConfigError, match="cannot write to the output folder"):
        fit(run_dir=tmp_path / "run")


# ---- run folders -----------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["config", "data", "seed"])
def test_a_run_folder_belongs_to_one_fit(tmp_path, other):
    fit(run_dir=tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    options = {
        "config": {"config": dataclasses.replace(MICRO, energy_reduction="sum")},
        "data": {"data": toy(*[12] * 10, seed=1)},
        "seed": {"seed": 1},
    }[other]
    with pytest.raises(ConfigError, match=f"holds a run with another {other}; choose another run folder"):
        fit(run_dir=tmp_path, **options)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_finished_run_is_read_not_trained_again(tmp_path, fitted, monkeypatch):
    first = fit(run_dir=tmp_path)
    lines = {path: path.read_text() for path in tmp_path.rglob("metrics.jsonl")}
    assert len(lines) == 3

    def trained(*_):
        raise AssertionError("trained again")

    for learner in (EncoderLearner, PredictorLearner):
        monkeypatch.setattr(learner, "loss", trained)
    second = fit(run_dir=str(tmp_path))
    assert same(weights(first), weights(second))
    assert same(weights(second), fitted)
    assert second.info["training"] == first.info["training"]
    assert set(first.info["training"]) == {"stage1", "stage2", "inverse_dynamics"}


@pytest.mark.parametrize("stage", [EncoderLearner, PredictorLearner])
def test_an_interrupted_fit_goes_on_to_the_same_gate(tmp_path, fitted, stage, monkeypatch):
    original = stage.loss

    def interrupted(self, batch, step, generator):
        if step == STEPS // 2:
            raise KeyboardInterrupt
        return original(self, batch, step, generator)

    with monkeypatch.context() as patch:
        patch.setattr(stage, "loss", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fit(run_dir=tmp_path)
    torch.rand(100)  # whatever happened in between
    assert same(weights(fit(run_dir=tmp_path)), fitted)


def test_a_run_folder_holds_its_settings(tmp_path):
    fit(run_dir=tmp_path, seed=3)
    settings = json.loads((tmp_path / "config.json").read_text())
    assert settings["seed"] == 3
    assert settings["data"] == DATA.fingerprint()
    assert GateConfig.from_json(settings["config"]) == MICRO


def test_settings_survive_json():
    for config in (*PRESETS.values(), MICRO, dataclasses.replace(MICRO, inverse_dynamics=None)):
        assert GateConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


# ---- determinism -----------------------------------------------------------------------------------


def test_a_seed_decides_all(fitted):
    torch.manual_seed(99)
    assert same(weights(fit()), fitted)


def test_another_seed_gives_another_gate(fitted):
    other = weights(fit(seed=1))
    learnt = [name for name in fitted if name.endswith("weight")]
    assert len(learnt) > 5
    assert not any(torch.equal(fitted[name], other[name]) for name in learnt if "norm" not in name)


def test_a_fit_leaves_the_global_random_stream_alone():
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    fit()
    assert torch.equal(torch.rand(3), wanted)


def test_the_gate_knows_what_it_was_fitted_to():
    gate = fit(device=torch.device("cpu"), seed=4)
    assert gate.device == torch.device("cpu")
    assert (gate.state_dim, gate.action_dim) == (3, 2)
    assert gate.info["data"] == {"name": "toy", "fingerprint": DATA.fingerprint(), "rows": 120, "episodes": 10}
    assert gate.info["seed"] == 4
    assert set(gate.info["training"]) == {"stage1", "stage2", "inverse_dynamics"}
    json.dumps(gate.info, allow_nan=False)


def test_without_inverse_dynamics_none_is_fitted(tmp_path):
    gate = fit(config=dataclasses.replace(MICRO, inverse_dynamics=None), run_dir=tmp_path)
    assert gate.inverse_dynamics is None
    assert set(gate.info["training"]) == {"stage1", "stage2"}
    assert not (tmp_path / "inverse_dynamics").exists()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "stage2", [{"tokens": "separate"}, {"whitening": "zca"}, {"whitening": "none"}, {"negative_weight": 0.0}]
)
def test_every_variant_fits(precision, stage2, tmp_path):
    optimiser = dataclasses.replace(OPTIMISER, steps=2, precision=precision)
    config = dataclasses.replace(
        MICRO,
        stage1=dataclasses.replace(MICRO.stage1, optimiser=optimiser),
        stage2=dataclasses.replace(MICRO.stage2, optimiser=optimiser, **stage2),
        inverse_dynamics=None,
        stride=2,
    )
    gate = fit(config=config)
    assert {tensor.dtype for tensor in weights(gate).values()} == {torch.float32}
    gate.save(tmp_path)
    energy = Gate.load(tmp_path).score(DATA)
    assert np.array_equal(energy, gate.score(DATA), equal_nan=True)
    assert np.isfinite(energy).sum() == 10 * (12 - 2)


# ---- held-out episodes -----------------------------------------------------------------------------


def test_no_training_step_sees_a_held_out_episode(monkeypatch):
    training, held_out = DATA.split(MICRO.held_out, seed=0)
    assert len(held_out) == 3
    seen = {}

    def note(learner, kind, batch):
        seen.setdefault((learner.name, kind), set()).update(batch.states[..., -1].unique().tolist())

    def spy_on(kind):
        loss, evaluate = kind.loss, kind.evaluate

        def spied_loss(self, batch, step, generator):
            note(self, "training", batch)
            return loss(self, batch, step, generator)

        def spied_evaluate(self, generator):
            note(self, "held out", self._held_out.sample(500, generator))
            return evaluate(self, generator)

        monkeypatch.setattr(kind, "loss", spied_loss)
        monkeypatch.setattr(kind, "evaluate", spied_evaluate)

    for kind in (EncoderLearner, PredictorLearner, InverseDynamicsLearner):
        spy_on(kind)
    fit()
    for name in ("stage1", "stage2", "inverse_dynamics"):
        assert seen[name, "training"] == set(training.tolist())
        assert seen[name, "held out"] == set(held_out.tolist())


def test_the_seed_chooses_what_is_held_out():
    gates = [fit(seed=seed) for seed in (0, 2)]
    rows = [set(gate.held_out(DATA).states[:, -1].tolist()) for gate in gates]
    assert rows[0] != rows[1]
    for gate, held_out in zip(gates, rows, strict=True):
        assert held_out == set(DATA.split(0.3, gate.info["seed"])[1].tolist())


def test_the_whitening_does_not_see_held_out_episodes(monkeypatch):
    seen = set()

    def spied(stage1, rows, config, seed):
        seen.update(rows.sample(2000, torch.Generator()).states[..., -1].unique().tolist())
        return whiten(stage1, rows, config, seed)

    whiten = fit_module._whiten
    monkeypatch.setattr(fit_module, "_whiten", spied)
    fit()
    assert seen == set(DATA.split(MICRO.held_out, seed=0)[0].tolist())
