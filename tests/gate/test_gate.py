"""The gate as its users meet it: kinds and shapes, choices, refusals, files, scores, calibration, the hub."""

import json
import re
import shutil
import sys
import types
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sageplan
from sageplan import Calibration, Gate, GateConfig, InverseDynamics, Pools, Stage1, Stage2, Trajectories, select
from sageplan.data.normaliser import Normaliser
from sageplan.diffusion.inverse_dynamics import ActionRange, InverseDynamicsModel
from sageplan.errors import ConfigError, DataError, FormatError, MissingExtraError, SageplanError
from sageplan.gate.calibrate import PREFIXES, energy_quantiles
from sageplan.gate.encoder import Encoder
from sageplan.gate.predictor import FrozenEncoder, LatentPredictor, Whitening

NAN, INF = np.nan, np.inf
BAD = pytest.mark.parametrize("bad", [NAN, INF, -INF])


def untrained(stride=1, inverse=False, window=4, **settings):
    """A gate with random weights for states of size 3 and actions of size 2."""
    config = GateConfig(
        stage1=Stage1(latent=8, hidden=16, heads=2),
        stage2=Stage2(window=window, width=16, heads=2, layers=1, head_hidden=16, rollout=1),
        inverse_dynamics=InverseDynamics(hidden=8, steps=3) if inverse else None,
        stride=stride,
        **settings,
    )
    torch.manual_seed(0)
    return Gate(
        config,
        FrozenEncoder(Normaliser(3), Encoder(3, 16, 8), Whitening(8, "per_dim")),
        LatentPredictor(8, 2, config.stage2),
        InverseDynamicsModel(config.inverse_dynamics, Normaliser(3), ActionRange(2)) if inverse else None,
        {"data": {"name": "toy", "fingerprint": "", "rows": 0, "episodes": 0}, "seed": 0, "training": {}},
    )


def episodes(*lengths, seed=0):
    rng = np.random.default_rng(seed)
    return Trajectories.from_episodes((rng.standard_normal((n, 3)), rng.uniform(-1, 1, (n, 2))) for n in lengths)


def as_torch(pool):
    return tuple(torch.from_numpy(x.copy()) for x in pool)


# ---- kinds and shapes ------------------------------------------------------------------------------


@pytest.mark.parametrize("drawn", [False, True])
def test_numpy_in_numpy_out(tiny_gate, pool, drawn):
    states, actions, values = pool
    actions = None if drawn else actions
    results = {
        "energy": (tiny_gate.energy(states, actions), (3, 5)),
        "step_energy": (tiny_gate.step_energy(states, actions), (3, 5, 20)),
        "one pool": (tiny_gate.energy(states[0], None if drawn else actions[0]), (5,)),
        "steps of one pool": (tiny_gate.step_energy(states[0], None if drawn else actions[0]), (5, 20)),
        "steps of one plan": (tiny_gate.step_energy(states[0, 0], None if drawn else actions[0, 0]), (20,)),
    }
    choice = tiny_gate.choose(states, actions, values)
    results |= {
        "choice.energy": (choice.energy, (3, 5)),
        "choice.score": (choice.score, (3, 5)),
        "choice.actions": (choice.actions, (3, 5, 10, 2)),
        "choice.action": (choice.action, (3, 2)),
    }
    for name, (result, shape) in results.items():
        assert isinstance(result, np.ndarray), name
        assert (result.shape, result.dtype) == (shape, np.float32), name
        assert np.isfinite(result).all() or name == "choice.score"
    assert choice.index.shape == (3,)
    assert np.issubdtype(choice.index.dtype, np.integer)
    assert (choice.kept.shape, choice.kept.dtype) == ((3, 5), np.bool_)


def test_torch_in_torch_out_with_the_same_numbers(tiny_gate, pool):
    states, actions, values = as_torch(pool)
    assert torch.equal(tiny_gate.energy(states, actions), torch.from_numpy(tiny_gate.energy(*pool[:2])))
    steps = tiny_gate.step_energy(states, actions)
    assert torch.equal(steps, torch.from_numpy(tiny_gate.step_energy(*pool[:2])))
    choice, wanted = tiny_gate.choose(states, actions, values), tiny_gate.choose(*pool)
    for field in ("index", "energy", "score", "kept", "actions", "action"):
        assert isinstance(getattr(choice, field), torch.Tensor)
        assert np.array_equal(getattr(choice, field).numpy(), getattr(wanted, field)), field
    single = tiny_gate.step_energy(states[0, 0], actions[0, 0])
    assert (single.shape, single.dtype) == ((20,), torch.float32)


def test_torch_results_can_be_changed_in_place(tiny_gate, pool):
    states, actions, values = as_torch(pool)
    given_actions, drawn = tiny_gate.choose(states, actions, values), tiny_gate.choose(states, None, values)
    energies = tiny_gate.energy(states, actions), tiny_gate.step_energy(states, actions)
    for result in (*energies, given_actions.energy, given_actions.actions, drawn.energy, drawn.actions):
        result += 1


def test_one_pool_is_a_batch_of_one(tiny_gate, pool):
    states, actions, values = pool
    batch = tiny_gate.choose(states, actions, values)
    for b in range(3):
        single = tiny_gate.choose(states[b], actions[b], values[b])
        assert single.index.shape == ()
        assert single.index == batch.index[b]
        assert single.energy == pytest.approx(batch.energy[b], rel=1e-4)
        assert np.array_equal(single.action, batch.action[b])


@pytest.mark.parametrize("kind", [np.float64, np.float16])
def test_other_precisions_are_read_as_float32(tiny_gate, pool, kind):
    states, actions, values = (x.astype(kind) for x in pool)
    energy = tiny_gate.energy(states, actions)
    assert energy.dtype == np.float32
    assert np.array_equal(energy, tiny_gate.energy(states.astype(np.float32), actions.astype(np.float32)))
    choice = tiny_gate.choose(states, actions, values, keep=1, penalty=0)
    assert choice.index.tolist() == values.argmax(1).tolist()
    if kind is np.float64:
        assert np.array_equal(choice.score, values)


def test_lists_and_integers_will_do():
    gate = untrained()
    states, actions = [[[0, 0, 0], [1, 0, 2]]] * 2, [[[1, 0]], [[0, 1]]]
    choice = gate.choose(states, actions, [1, 2], prefix=1, keep=1, penalty=0)
    assert choice.index == 1
    assert choice.action.tolist() == [0, 1]


def test_inputs_are_left_alone(tiny_gate, pool):
    frozen = tuple(x.copy() for x in pool)
    frozen[0][0, 0, 3] = NAN
    for array in frozen:
        array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tiny_gate.choose(*frozen)
        tiny_gate.choose(frozen[0], None, frozen[2])
    assert np.isnan(frozen[0][0, 0, 3]).all()


def test_no_graph_is_kept(tiny_gate, pool):
    states, actions, values = (x.requires_grad_() for x in as_torch(pool))
    assert not tiny_gate.energy(states, actions).requires_grad
    assert tiny_gate.choose(states, actions, values).index.shape == (3,)


# ---- the prefix ------------------------------------------------------------------------------------


def test_the_prefix_is_the_papers_until_calibrated(tiny_gate, pool):
    states, actions, values = pool
    assert (tiny_gate.prefix, tiny_gate.penalty) == (10, 0.1)
    assert np.array_equal(tiny_gate.energy(states, actions), tiny_gate.energy(states, actions, prefix=10))
    choice = tiny_gate.choose(states, actions, values)
    wanted = select(values, tiny_gate.energy(states, actions, prefix=10), keep=0.8, penalty=0.1)
    for field in ("index", "energy", "score", "kept"):
        assert np.array_equal(getattr(choice, field), getattr(wanted, field))
    assert np.array_equal(choice.actions, actions[:, :, :10])


def test_the_calibrated_prefix_and_penalty_are_used(tiny_gate, pool):
    states, actions, values = pool
    tiny_gate.calibration = Calibration([0.0, 1.0], [0.0, 1.0], prefix=3, penalty=2.0)
    assert np.array_equal(tiny_gate.energy(states, actions), tiny_gate.energy(states, actions, prefix=3))
    choice = tiny_gate.choose(states, actions, values)
    assert np.array_equal(choice.score, tiny_gate.choose(states, actions, values, prefix=3, penalty=2.0).score)
    assert np.array_equal(tiny_gate.choose(states, actions, values, penalty=0.0, keep=1).score, values)


def test_a_prefix_of_nothing_costs_nothing(tiny_gate, pool):
    states, actions, _ = pool
    for given_actions in (actions, None):
        energy = tiny_gate.energy(states, given_actions, prefix=0)
        assert energy.shape == (3, 5)
        assert not energy.any()


@pytest.mark.parametrize("best", range(5))
def test_a_prefix_of_nothing_is_the_planner_without_a_gate(tiny_gate, pool, best):
    states, actions, values = pool
    values = np.abs(values)
    values[:, best] += 10
    assert tiny_gate.choose(states, actions, values, prefix=0).index.tolist() == [best] * 3


def test_a_prefix_longer_than_the_plan_is_cut_with_one_warning(tiny_gate, pool):
    states, actions, values = pool[0][:, :, :5], pool[1][:, :, :4], pool[2]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cut = tiny_gate.energy(states, actions)
        tiny_gate.energy(states, actions, prefix=6)
        choice = tiny_gate.choose(states, actions, values)
    messages = [str(warning.message) for warning in caught]
    assert messages == ["sageplan: prefix 10 is longer than the plan; scoring its 4 steps"]
    assert (caught[0].category, caught[0].filename) == (UserWarning, __file__)
    assert np.array_equal(cut, tiny_gate.energy(states, actions, prefix=4))
    assert choice.actions.shape == (3, 5, 4, 2)


def test_a_prefix_that_fits_warns_of_nothing(tiny_gate, pool):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tiny_gate.energy(*pool[:2])
        tiny_gate.energy(*pool[:2], prefix=20)


def test_a_negative_prefix_is_refused(tiny_gate, pool):
    with pytest.raises(ConfigError, match="prefix counts steps and cannot be negative, got -1"):
        tiny_gate.energy(*pool[:2], prefix=-1)


# ---- drawn actions ---------------------------------------------------------------------------------


def test_the_executed_action_is_the_one_that_was_scored(tiny_gate, pool):
    states, _, values = pool
    choice = tiny_gate.choose(states, None, values)
    assert choice.actions.shape == (3, 5, 10, 2)
    for b in range(3):
        assert np.array_equal(choice.action[b], choice.actions[b, choice.index[b], 0])
    again = tiny_gate.energy(states[:, :, :11], choice.actions, prefix=10)
    assert np.array_equal(again, choice.energy)


def test_draws_come_from_the_generator_that_is_handed_in(tiny_gate, pool):
    states = pool[0]

    def drawn(seed):
        return tiny_gate.energy(states, generator=torch.Generator().manual_seed(seed))

    assert np.array_equal(drawn(1), drawn(1))
    assert not np.array_equal(drawn(1), drawn(2))
    own = tiny_gate.energy(states)
    assert not np.array_equal(own, tiny_gate.energy(states))


def test_drawing_leaves_the_global_random_stream_alone(tiny_gate, pool):
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    tiny_gate.choose(pool[0], None, pool[2])
    assert torch.equal(torch.rand(3), wanted)


def test_a_loaded_gate_draws_the_same_actions_again(gate_folder, pool):
    first, second = (Gate.load(gate_folder).energy(pool[0]) for _ in range(2))
    assert np.array_equal(first, second)


# ---- choices ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("drawn", [False, True])
def test_keeping_all_without_a_penalty_is_argmax(tiny_gate, pool, drawn):
    states, actions, values = pool
    choice = tiny_gate.choose(states, None if drawn else actions, values, keep=1.0, penalty=0.0)
    assert np.array_equal(choice.index, values.argmax(1))
    assert np.array_equal(choice.score, values)


def test_penalty_units_are_passed_on(tiny_gate, pool):
    states, actions, values = pool
    choice = tiny_gate.choose(states, actions, 1000 * values, keep=1, penalty=0.5, penalty_units="pool")
    wanted = select(1000 * values, tiny_gate.energy(states, actions), keep=1, penalty=0.5, penalty_units="pool")
    assert np.array_equal(choice.score, wanted.score)


@BAD
@pytest.mark.parametrize("where", ["first state", "later state", "last scored state", "action"])
def test_one_broken_candidate_costs_inf_and_leaves_the_others_as_they_were(tiny_gate, pool, bad, where):
    states, actions, values = (x.copy() for x in pool)
    before = tiny_gate.energy(states, actions)
    if where == "action":
        actions[1, 2, 4, 1] = bad
    else:
        states[1, 2, {"first state": 0, "later state": 4, "last scored state": 10}[where], 0] = bad
    after = tiny_gate.energy(states, actions)
    assert after[1, 2] == INF
    others = np.ones((3, 5), bool)
    others[1, 2] = False
    assert np.array_equal(after[others], before[others])
    values[1, 2] = 100
    assert tiny_gate.choose(states, actions, values).index[1] != 2


@BAD
def test_a_broken_state_breaks_the_steps_that_touch_it_and_all_after(tiny_gate, pool, bad):
    states, actions = pool[0][0, 0].copy(), pool[1][0, 0]
    before = tiny_gate.step_energy(states, actions)
    states[6, 1] = bad
    after = tiny_gate.step_energy(states, actions)
    assert (after[5:] == INF).all()
    assert np.array_equal(after[:5], before[:5])


@BAD
def test_what_follows_the_prefix_may_be_broken(tiny_gate, pool, bad):
    states, actions = pool[0].copy(), pool[1].copy()
    before = tiny_gate.energy(states, actions)
    states[:, :, 11:], actions[:, :, 10:] = bad, bad
    assert np.array_equal(tiny_gate.energy(states, actions), before)


@BAD
def test_broken_states_are_survived_when_actions_are_drawn(tiny_gate, pool, bad):
    states, _, values = (x.copy() for x in pool)
    states[0, 3, 5] = bad
    values[0, 3] = 100
    choice = tiny_gate.choose(states, None, values)
    assert choice.energy[0, 3] == INF
    assert choice.index[0] != 3
    assert np.isfinite(np.delete(choice.energy.ravel(), 3)).all()


def test_without_any_usable_plan_the_value_decides(tiny_gate, pool):
    states, actions, values = (x.copy() for x in pool)
    states[0, :, 2] = NAN
    choice = tiny_gate.choose(states, actions, values)
    assert choice.index[0] == values[0].argmax()
    assert np.isfinite(choice.energy[1:]).all()


# ---- refusals --------------------------------------------------------------------------------------


def arrays(states=(2, 3, 5, 3), actions=(2, 3, 4, 2)):
    return np.zeros(states, np.float32), np.zeros(actions, np.float32)


@pytest.mark.parametrize(
    ("states", "actions", "message"),
    [
        ((2, 3, 5, 4), (2, 3, 4, 2), r"states have shape \(2, 3, 5, 4\), expected .* with S=3 and at least 2 rows"),
        ((3,), (2,), r"states have shape \(3,\), expected \[B, C, H\+1, S\] or \[C, H\+1, S\] with S=3"),
        ((5, 3), (4, 2), r"states have shape \(5, 3\), expected \[B, C, H\+1, S\] or \[C, H\+1, S\] with"),
        ((1, 2, 3, 5, 3), (1, 2, 3, 4, 2), r"states have shape \(1, 2, 3, 5, 3\), expected"),
        ((2, 3, 1, 3), (2, 3, 0, 2), "at least 2 rows"),
        ((2, 0, 5, 3), (2, 0, 4, 2), r"states have shape \(2, 0, 5, 3\): there are no candidates"),
        ((2, 3, 5, 3), (2, 3, 4, 1), r"actions have shape \(2, 3, 4, 1\), expected \(2, 3, 4, 2\) for these states$"),
        ((2, 3, 5, 3), (2, 3, 5, 2), r"expected \(2, 3, 4, 2\) for these states; the last state has no action"),
        ((2, 3, 5, 3), (3, 4, 2), r"actions have shape \(3, 4, 2\), expected \(2, 3, 4, 2\)"),
    ],
)
def test_wrong_shapes_are_named(states, actions, message):
    states, actions = arrays(states, actions)
    with pytest.raises(DataError, match=message):
        untrained().energy(states, actions)
    with pytest.raises(DataError, match=message):
        untrained().choose(torch.from_numpy(states), torch.from_numpy(actions), torch.zeros(states.shape[:-2]))


def test_a_single_plan_is_welcome_where_nothing_is_chosen():
    with pytest.raises(DataError, match=r"or \[H\+1, S\] with S=3"):
        untrained().step_energy(*arrays((5, 4), (4, 2)))
    assert untrained().step_energy(*arrays((5, 3), (4, 2))).shape == (4,)


@pytest.mark.parametrize("values", [(2,), (3,), (2, 4), (2, 3, 1), ()])
def test_one_value_per_candidate(values):
    message = re.escape(f"values have shape {values}, expected (2, 3): one per candidate")
    with pytest.raises(DataError, match=message):
        untrained().choose(*arrays(), np.zeros(values), prefix=4)
    with pytest.raises(DataError, match=message):
        untrained().choose(*map(torch.from_numpy, arrays()), torch.zeros(values), prefix=4)


def test_kinds_are_not_mixed():
    (states, actions), values, gate = arrays(), np.zeros((2, 3)), untrained()
    with pytest.raises(DataError, match="states are NumPy but actions are torch; give both as the same kind"):
        gate.energy(states, torch.from_numpy(actions))
    with pytest.raises(DataError, match="states are torch but actions are NumPy"):
        gate.energy(torch.from_numpy(states), actions)
    with pytest.raises(DataError, match="states are NumPy but values are torch"):
        gate.choose(states, actions, torch.from_numpy(values), prefix=4)
    with pytest.raises(DataError, match="states are torch but values are NumPy"):
        gate.choose(torch.from_numpy(states), torch.from_numpy(actions), values, prefix=4)


@pytest.mark.parametrize("states", ["abc", [[["x"]]], [[[1, 2, 3], [1, 2]]]])
def test_what_is_not_numbers_is_refused(states):
    with pytest.raises(DataError, match="states cannot be read as an array of numbers"):
        untrained().energy(states, [[[0, 0]]])


def test_plans_of_another_stride_are_refused():
    gate = untrained(stride=3)
    for stride in (1, 2):
        with pytest.raises(ConfigError, match=f"fitted at stride 3 and cannot judge plans of stride {stride}"):
            gate.energy(*arrays(), stride=stride)
    with pytest.raises(ConfigError, match="stride 3"):
        gate.choose(*arrays(), np.zeros((2, 3)))
    assert gate.energy(*arrays(), prefix=4, stride=3).shape == (2, 3)


def test_states_alone_need_inverse_dynamics():
    with pytest.raises(ConfigError, match="plans without actions need inverse dynamics"):
        untrained().energy(arrays()[0])
    assert untrained(inverse=True).energy(arrays()[0], prefix=4).shape == (2, 3)


@pytest.mark.parametrize(
    "rule", [{"keep": 0}, {"keep": 1.1}, {"keep": NAN}, {"penalty": -1}, {"penalty": NAN}, {"penalty_units": "z"}]
)
def test_a_rule_that_cannot_be_meant_is_refused_before_anything_is_computed(rule, monkeypatch):
    gate = untrained()
    monkeypatch.setattr(gate, "predictor", None)
    with pytest.raises(ConfigError, match=next(iter(rule))):
        gate.choose(*arrays(), np.zeros((2, 3)), **rule)


def test_its_name_says_what_it_is_for(tiny_gate):
    assert repr(tiny_gate) == "Gate(maze2d-umaze, state 4, action 2, cpu)"


# ---- files -----------------------------------------------------------------------------------------


def edit(folder, change):
    path = folder / "gate.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


@pytest.fixture
def folder(gate_folder, tmp_path):
    """A copy of the saved gate to spoil."""
    return Path(shutil.copytree(gate_folder, tmp_path / "gate"))


@pytest.fixture
def weights(folder):
    (path,) = folder.glob("weights-*.safetensors")
    return path


def test_a_saved_gate_gives_the_same_energies_bit_for_bit(tiny_gate, pool, tmp_path):
    tiny_gate.calibration = Calibration([0.0, 1.0], [0.1, 1 / 3], prefix=3, penalty=0.7, detection={"3": 0.9})
    tiny_gate.save(tmp_path / "deep" / "gate")
    loaded = Gate.load(tmp_path / "deep" / "gate")
    assert (loaded.config, loaded.info, loaded.calibration) == (
        tiny_gate.config, tiny_gate.info, tiny_gate.calibration,
    )  # fmt: skip
    states, actions, _ = pool
    assert np.array_equal(loaded.step_energy(states, actions), tiny_gate.step_energy(states, actions))
    draws = [g.energy(states, generator=torch.Generator().manual_seed(1)) for g in (loaded, tiny_gate)]
    assert np.array_equal(*draws)
    assert (loaded.prefix, loaded.penalty) == (3, 0.7)


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("settings", [{}, {"energy_reduction": "sum"}, {"stride": 2}])
def test_settings_and_parts_survive_saving(tmp_path, inverse, settings):
    gate = untrained(inverse=inverse, **settings)
    gate.save(tmp_path)
    loaded = Gate.load(str(tmp_path))
    assert loaded.config == gate.config
    assert loaded.calibration is None
    assert (loaded.inverse_dynamics is None) is not inverse
    states, actions = episodes(9).states[None], episodes(9).actions[None, :-1]
    stride = gate.config.stride
    assert np.array_equal(
        loaded.step_energy(states, actions, stride=stride), gate.step_energy(states, actions, stride=stride)
    )


def test_weights_are_all_there_is_to_a_gate_folder(gate_folder):
    names = sorted(path.name for path in gate_folder.iterdir())
    assert names[0] == "gate.json"
    assert re.fullmatch(r"weights-[0-9a-f]{12}\.safetensors", names[1])
    assert len(names) == 2


def test_saving_over_an_older_gate_replaces_it(tiny_gate, pool, tmp_path):
    older = untrained()
    older.save(tmp_path)
    tiny_gate.save(tmp_path)
    tiny_gate.save(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert len(list(tmp_path.glob("*.safetensors"))) == 1
    assert np.array_equal(Gate.load(tmp_path).energy(*pool[:2]), tiny_gate.energy(*pool[:2]))


def test_an_interrupted_save_leaves_the_older_gate(tiny_gate, pool, folder, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    wanted = Gate.load(folder).energy(*pool[:2])
    with torch.no_grad():
        tiny_gate.predictor.position.add_(1)
    monkeypatch.setattr("sageplan.gate.store.write_json", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tiny_gate.save(folder)
    assert np.array_equal(Gate.load(folder).energy(*pool[:2]), wanted)


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write to the output folder"):
        untrained().save(tmp_path / "file")


@pytest.mark.parametrize("damage", ["cut", "flipped", "text", "empty"])
def test_corrupt_weights_are_refused(folder, weights, damage):
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    spoilt = {"cut": content[:-100], "flipped": content, "text": b"not weights at all", "empty": b""}
    weights.write_bytes(bytes(spoilt[damage]))
    with pytest.raises(FormatError, match="corrupt"):
        Gate.load(folder)


def test_missing_weights_are_refused(folder, weights):
    weights.unlink()
    with pytest.raises(FormatError, match=f"{weights.name} does not exist; expected the weights of a saved gate"):
        Gate.load(folder)


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [("stage1", "latent", 8), ("stage2", "width", 64), ("stage2", "window", 9), ("stage2", "layers", 2),
     ("inverse_dynamics", "hidden", 16)],
)  # fmt: skip
def test_weights_of_other_settings_are_refused(folder, part, field, value):
    edit(folder, lambda record: record["config"][part].update({field: value}))
    with pytest.raises(FormatError, match="does not fit"):
        Gate.load(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "is not valid JSON"), ("", "is not valid JSON"), (b"\xff\xfe\x00", "is not valid JSON"),
     ("[1, 2]", "holds a JSON list, not an object"), ("{}", "is not a saved gate: its format is None"),
     ('{"format": "safetensors"}', "its format is 'safetensors', not 'sageplan-gate'")],
)  # fmt: skip
def test_json_that_is_no_gate_is_refused(folder, content, message):
    (folder / "gate.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(FormatError, match=message):
        Gate.load(folder)


def test_an_empty_folder_is_no_gate(tmp_path):
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(FormatError, match=r"gate\.json does not exist; expected a saved gate"):
            Gate.load(folder)


def test_a_newer_gate_asks_for_an_upgrade(folder):
    edit(folder, lambda record: record.update(version=99, sageplan="9.9"))
    with pytest.raises(FormatError, match=r"saved by sageplan 9\.9 in format 99; .*Upgrade sageplan"):
        Gate.load(folder)


@pytest.mark.parametrize(
    "field", ["config", "state_dim", "weights", "calibration", "data", "seed", "training", "version"]
)
def test_a_gate_with_a_field_missing_is_damaged(folder, field):
    edit(folder, lambda record: record.pop(field))
    with pytest.raises(FormatError, match="is damaged"):
        Gate.load(folder)


SPOILT = {
    "unknown setting": lambda record: record["config"]["stage1"].update(colour="red"),
    "unknown optimiser setting": lambda record: record["config"]["stage2"]["optimiser"].update(speed=3),
    "setting out of range": lambda record: record["config"].update(stride=0),
    "setting of another type": lambda record: record["config"]["stage1"].update(hidden="wide"),
    "size of another type": lambda record: record.update(state_dim="four"),
    "version of another type": lambda record: record.update(version="new"),
    "unknown calibration": lambda record: record["calibration"].update(scale=2),
    "no weights named": lambda record: record.update(weights=[]),
    "no settings": lambda record: record.update(config=[]),
}


@pytest.mark.parametrize("change", SPOILT.values(), ids=SPOILT)
def test_a_gate_with_a_field_spoilt_is_refused(folder, change):
    edit(folder, change)
    with pytest.raises(FormatError):
        Gate.load(folder)


def test_nothing_is_ever_unpickled():
    for path in Path(sageplan.__file__).parent.rglob("*.py"):
        found = re.search(r"\b(c?pickle|dill|joblib|marshal|shelve)\b|torch\.(load|save)\b|allow_pickle=True",
                          path.read_text())  # fmt: skip
        assert not found, (path, found)


# ---- scores ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("window", [1, 4, 5])
def test_every_transition_is_scored_once_as_in_a_plan(stride, window):
    gate, data = untrained(stride=stride, window=window), episodes(5, 1, 2, 9, 3, 40, 4)
    energy = gate.score(data)
    assert (energy.shape, energy.dtype) == ((len(data),), np.float32)
    last = np.concatenate([np.arange(n)[::-1] < stride for n in data.lengths])
    assert np.array_equal(np.isnan(energy), last)
    for begin, end in zip(data.offsets[:-1], data.offsets[1:], strict=True):
        for phase in range(begin, min(begin + stride, end)):
            rows = np.arange(phase, end, stride)
            if len(rows) > 1:
                plan = gate.step_energy(data.states[rows], data.actions[rows[:-1]], stride=stride)
                assert energy[rows[:-1]] == pytest.approx(plan, rel=1e-4)


def test_each_transition_is_given_to_the_model_as_fresh_just_once(monkeypatch):
    """Scoring in small batches must not leave out, or overwrite, what lies between them."""
    gate, data = untrained(), episodes(30, 17, 9, 50)
    whole = gate.score(data)
    monkeypatch.setattr("sageplan.gate.score._WINDOWS", 3)
    assert gate.score(data) == pytest.approx(whole, rel=1e-4, nan_ok=True)


def test_scores_do_not_depend_on_neighbouring_episodes():
    gate, data = untrained(), episodes(12, 7, 20)
    energy = gate.score(data)
    alone = gate.score(data.episodes([1]))
    assert energy[12:19] == pytest.approx(alone, rel=1e-4, nan_ok=True)


def test_read_only_data_is_scored_in_silence():
    data = episodes(12, 7)
    data.states.flags.writeable = data.actions.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        untrained().score(data)


def test_data_of_other_sizes_is_refused(tiny_gate):
    with pytest.raises(DataError, match="states of size 3 and actions of size 2; this gate was fitted to 4 and 2"):
        tiny_gate.score(episodes(9))


def test_data_without_a_transition_is_refused():
    with pytest.raises(DataError, match="no transition to score: the longest of 2 episodes has 1 rows"):
        untrained().score(episodes(1, 1))
    with pytest.raises(DataError, match="stride 3 needs 4"):
        untrained(stride=3).score(episodes(3, 2))


# ---- calibration -----------------------------------------------------------------------------------


def test_a_fit_knows_the_energies_of_its_held_out_episodes(tiny_gate, maze_data):
    calibration = tiny_gate.calibration
    assert calibration.prefix is calibration.penalty is None
    _, held_out = maze_data.split(tiny_gate.config.held_out, 0)
    energies = tiny_gate.score(maze_data.episodes(held_out))
    energies = energies[np.isfinite(energies)]
    assert calibration.energies == pytest.approx(energy_quantiles(energies).energies, rel=1e-5)
    assert calibration.energies[0] == pytest.approx(energies.min())
    assert calibration.energies[-1] == pytest.approx(energies.max())


def test_what_was_held_out_is_known_again(tiny_gate, maze_data):
    _, held_out = maze_data.split(tiny_gate.config.held_out, 0)
    assert tiny_gate.held_out(maze_data).fingerprint() == maze_data.episodes(held_out).fingerprint()
    other = maze_data.episodes(range(20))
    assert tiny_gate.held_out(other) is other


def test_quantiles_rise_from_zero_to_one(tiny_gate):
    energies = np.array(tiny_gate.calibration.energies)
    assert (np.diff(energies) >= 0).all()
    grid = np.linspace(0, 2 * energies[-1], 500)
    share = tiny_gate.quantile(grid)
    assert (np.diff(share) >= 0).all()
    assert (share[0], share[-1]) == (0, 1)
    assert tiny_gate.quantile(INF) == 1
    assert tiny_gate.quantile(energies[5]) == pytest.approx(0.5)
    assert tiny_gate.quantile(grid.reshape(5, 100)).shape == (5, 100)


def test_quantiles_need_a_calibration():
    with pytest.raises(ConfigError, match=r"no calibration; run gate\.calibrate\(data\)"):
        untrained().quantile(0.1)


@given(st.lists(st.floats(0, 1e3, width=32), min_size=1, max_size=60))
def test_quantiles_are_the_share_of_lower_energies(energies):
    calibration = energy_quantiles(np.array(energies, np.float32))
    assert np.all(np.diff(calibration.energies) >= 0)
    assert calibration.quantile(max(energies)) == 1
    assert calibration.quantile(np.float32(max(energies)) + 1) == 1
    assert calibration.quantile(min(energies) - 1) == 0


def test_calibrating_sets_a_prefix_from_the_grid(tiny_gate, maze_data):
    earlier = tiny_gate.calibration
    calibration = tiny_gate.calibrate(maze_data)
    assert calibration is tiny_gate.calibration
    assert calibration.prefix == tiny_gate.prefix
    assert calibration.prefix in PREFIXES
    assert set(calibration.detection) <= {str(k) for k in PREFIXES}
    best = max(calibration.detection.values())
    good = [int(k) for k, value in calibration.detection.items() if value >= best - 0.005]
    assert calibration.prefix == min(good)
    assert calibration.energies == pytest.approx(earlier.energies)
    assert calibration.penalty is None
    assert tiny_gate.calibrate(maze_data) == calibration


def test_calibrating_on_short_episodes_stays_within_them():
    gate = untrained()
    calibration = gate.calibrate(episodes(*[4] * 50))
    assert set(calibration.detection) == {"1", "2", "3"}
    assert calibration.prefix <= 3


@pytest.mark.parametrize("make", [tuple, as_torch])
def test_the_penalty_spreads_a_tenth_as_wide_as_the_values(tiny_gate, maze_data, pool, make):
    states, actions, values = pool
    calibration = tiny_gate.calibrate(maze_data, Pools(*make(pool)))
    energy = tiny_gate.energy(states, actions, prefix=calibration.prefix)
    ratios = [np.std(values[b]) / np.std(energy[b]) for b in range(3)]
    assert calibration.penalty == pytest.approx(0.1 * sorted(ratios)[1], rel=1e-4)
    assert tiny_gate.penalty == calibration.penalty
    assert tiny_gate.calibrate(maze_data).penalty == calibration.penalty


def test_broken_values_and_plans_do_not_spoil_the_penalty(tiny_gate, maze_data, pool):
    states, actions, values = (x.copy() for x in pool)
    values[1, 2] = NAN
    states[2, 1, 0] = NAN
    assert np.isfinite(tiny_gate.calibrate(maze_data, Pools(states, actions, values)).penalty)


# ---- the hub ---------------------------------------------------------------------------------------


class Hub(types.ModuleType):
    """As much of huggingface_hub as is used; repositories are folders."""

    def __init__(self, root):
        super().__init__("huggingface_hub")
        self.root, self.private = root, {}

    def create_repo(self, repo_id, *, private, exist_ok):
        assert exist_ok
        (self.root / repo_id).mkdir(parents=True, exist_ok=True)
        self.private[repo_id] = private

    def upload_folder(self, *, repo_id, folder_path, delete_patterns):
        for stale in (self.root / repo_id).glob(delete_patterns):
            stale.unlink()
        shutil.copytree(folder_path, self.root / repo_id, dirs_exist_ok=True)
        return f"https://hub.test/{repo_id}"

    def snapshot_download(self, repo_id, *, allow_patterns):
        copy = self.root / "cache" / repo_id
        for pattern in allow_patterns:
            for path in (self.root / repo_id).glob(pattern):
                copy.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, copy)
        return str(copy)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    fake = Hub(tmp_path / "hub")
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    return fake


def test_a_gate_comes_back_from_the_hub(tiny_gate, pool, hub):
    untrained().push_to_hub("me/gate")
    assert tiny_gate.push_to_hub("me/gate") == "https://hub.test/me/gate"
    assert hub.private == {"me/gate": True}
    assert len(list((hub.root / "me/gate").iterdir())) == 2
    loaded = Gate.from_pretrained("me/gate")
    assert np.array_equal(loaded.energy(*pool[:2]), tiny_gate.energy(*pool[:2]))
    tiny_gate.push_to_hub("me/open", private=False)
    assert hub.private["me/open"] is False


def test_a_local_folder_comes_first(tiny_gate, gate_folder, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert repr(Gate.from_pretrained(gate_folder)) == repr(tiny_gate)
    shutil.copytree(gate_folder, tmp_path / "me" / "gate")
    monkeypatch.chdir(tmp_path)
    assert repr(Gate.from_pretrained("me/gate")) == repr(tiny_gate)


def test_the_hub_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"me/gate is not a folder.*sageplan\[hub\]"):
        Gate.from_pretrained("me/gate")
    with pytest.raises(MissingExtraError, match=r"sharing a gate needs huggingface_hub.*sageplan\[hub\]"):
        untrained().push_to_hub("me/gate")


def test_all_refusals_share_a_base():
    for kind in (ConfigError, DataError, FormatError, MissingExtraError):
        assert issubclass(kind, SageplanError)


# ---- precision -------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", ["plan", "step"])
def test_energies_in_bf16_are_rounded_predictions_of_exact_latents(tiny_gate, pool, context):
    states, actions, _ = pool
    exact = tiny_gate.step_energy(states, actions, context=context)
    tiny_gate.config = replace(tiny_gate.config, precision="bf16")
    rounded = tiny_gate.step_energy(states, actions, context=context)
    assert rounded.dtype == np.float32
    assert 0 < np.abs(rounded - exact).max() < 0.05 * exact.mean()
    assert tiny_gate.encoder(torch.from_numpy(states)).dtype == torch.float32
