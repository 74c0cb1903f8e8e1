"""Paired episodes: against a loop that anyone can read, and against themselves in other company."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium")
pytest.importorskip("mujoco")

from toy_planner import STEPS, Between, Hops, Pushes, Rounding, nearness, short, upright

from sageplan import Gate
from sageplan.errors import ConfigError, DataError, EvaluationError
from sageplan.evaluation.chance import Stream, stream
from sageplan.evaluation.config import RolloutConfig
from sageplan.evaluation.decide import Decider
from sageplan.evaluation.records import read_records
from sageplan.evaluation.rollout import evaluate
from sageplan.evaluation.selectors import Sage
from sageplan.gate.gate import Gate as GateClass
from sageplan.tasks import make
from sageplan.tasks.maze2d import Maze, PointMaze
from sageplan.tasks.maze2d_world import Maze2DWorld
from sageplan.training.progress import Bars
from sageplan.types import Plans

CONFIG = RolloutConfig(candidates=10, block=2, width=6)
CPU = torch.device("cpu")
ARMS = ("mcss", "sage", "lowest-energy", "random", "oracle")
KINDS = pytest.mark.parametrize("with_actions", [True, False])


def run(planner, gate, selectors, episodes=5, config=CONFIG, *, scorer=nearness, task=None, **more):
    return evaluate(planner, scorer, gate, task or short(), selectors, episodes, config, progress=False, **more)


def by_cell(episodes):
    return {episode.cell: episode for episode in episodes}


def unnamed(episode):
    return dataclasses.replace(episode, arm="", settings={})


def traced(monkeypatch):
    """Every question with its answer, in a list that fills up."""
    asked, decide = [], Decider.decide

    def spy(self, asks):
        answers = decide(self, asks)
        asked.extend(zip(asks, answers, strict=True))
        return answers

    monkeypatch.setattr(Decider, "decide", spy)
    return asked


# ---- against a loop that anyone can read -----------------------------------------------------------


@pytest.mark.parametrize("replan", [1, 4])
def test_maze2d_is_what_a_plain_loop_gives(tiny_gate, replan):
    planner, task, scale = Pushes(), short(steps=40), tiny_gate.encoder.normaliser.std.numpy().astype(np.float64)
    config = dataclasses.replace(CONFIG, replan_every=replan, prefix=3, sampler_seed=9)
    seeds = [3, 77, 4]
    rule = Sage(prefix=7, keep=0.5, penalty=0.3)
    found = run(planner, tiny_gate, ["mcss", rule], seeds, config, task=task).episodes
    assert [(one.seed, one.arm) for one in found] == [(s, arm) for s in seeds for arm in ("mcss", rule.name)]
    for record in found:
        env = make(task)
        observation, _ = env.reset(seed=record.seed)
        rewards, gaps, prefix, executed, changed = [], [], [], [], 0
        for step in range(40):
            if step % replan == 0:
                noise = stream(Stream.PROPOSE, 9, record.seed, step, CPU)
                plans = planner.propose(torch.tensor(observation, dtype=torch.float32)[None], 10, [noise])
                values = nearness(plans)
                settings = {"keep": 0.5, "penalty": 0.3} if record.arm != "mcss" else {"keep": 1, "penalty": 0}
                winner = int(tiny_gate.choose(plans.states, plans.actions, values, prefix=7, **settings).index)
                states, actions = plans.states[0, winner].double().numpy(), plans.actions[0, winner].double().numpy()
                energies = tiny_gate.step_energy(plans.states[:, :, :4], plans.actions[:, :, :3])[0, winner].numpy()
                prefix.append(energies.mean())
                executed.append(energies[:replan].mean())
                changed += winner != int(values.argmax())
            observation, reward, terminated, truncated, info = env.step(actions[step % replan])
            rewards.append(reward)
            if step % replan == 0:
                gaps.append((np.abs(states[1] - observation) / scale).mean())
        assert truncated
        assert not terminated
        assert (record.length, record.terminated, record.decisions) == (40, False, 40 // replan)
        assert record.episode_return == record.occupancy == sum(rewards) == info["occupancy"]
        assert record.sticky_return == info["sticky_return"]
        assert record.success == (sum(rewards) > 0)
        assert record.score == task.normalise(sum(rewards))
        assert record.sticky_score == task.normalise(info["sticky_return"])
        assert record.gate_changed == changed
        assert record.prefix_energy == pytest.approx(np.mean(prefix), rel=1e-6)
        assert record.executed_energy == pytest.approx(np.mean(executed), rel=1e-6)
        assert record.gap == pytest.approx(np.mean(gaps), rel=1e-9)
        assert record.sampler_seed == 9
    assert any(one.gate_changed for one in found)
    assert all(not one.gate_changed for one in found if one.arm == "mcss")
    assert any(one.success for one in found)


def test_hopper_falls_and_the_next_episode_takes_its_place():
    task = short("hopper-medium-v2", 60)
    config = dataclasses.replace(CONFIG, width=3)
    found = run(Hops(), None, ["mcss", "random"], 8, config, scorer=upright, task=task, scale=np.full(11, 2.0)).episodes
    assert len({one.length for one in found}) > 4
    for record in (one for one in found if one.arm == "mcss"):
        env = make(task)
        observation, _ = env.reset(seed=record.seed)
        rewards, gaps, over = [], [], False
        while not over:
            noise = stream(Stream.PROPOSE, 0, record.seed, len(rewards), CPU)
            plans = Hops().propose(torch.tensor(observation, dtype=torch.float32)[None], 10, [noise])
            winner = int(upright(plans).argmax())
            before = plans.states[0, winner, 1].double().numpy()
            observation, reward, terminated, truncated, _ = env.step(plans.actions[0, winner, 0].numpy())
            rewards.append(reward)
            gaps.append(np.abs(before - observation).mean() / 2)
            over = terminated or truncated
        assert (record.length, record.terminated) == (len(rewards), terminated)
        assert record.episode_return == sum(rewards)
        assert record.gap == pytest.approx(np.mean(gaps), rel=1e-12)
        assert (record.success, record.occupancy, record.sticky_return, record.prefix_energy) == (None,) * 4


def test_the_oracle_executes_what_turns_out_best(tiny_gate, monkeypatch):
    asked = traced(monkeypatch)
    run(Pushes(jump=1.0), tiny_gate, ["oracle"], 3)
    maze, different = Maze.named("umaze"), 0
    for ask, answer in asked[::5]:
        noise = stream(Stream.PROPOSE, 0, ask.seed, ask.step, CPU)
        plans = Pushes(jump=1.0).propose(torch.tensor(ask.observation, dtype=torch.float32)[None], 10, [noise])
        ends = []
        for candidate in range(10):
            ball = PointMaze(maze, 1)
            ball.set_state(ask.observation[None])
            for action in plans.actions[0, candidate].numpy():
                state = ball.step(action[None])
            ends.append(np.linalg.norm(state[0, :2] - 1))
        best = int(np.argmin(ends))
        assert np.array_equal(answer.actions[0], plans.actions[0, best, 0].double().numpy())
        assert answer.changed == (best != int(nearness(plans).argmax()))
        different += answer.changed
    assert different


# ---- pairs -----------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("replan", [1, 3])
def test_without_filter_and_penalty_sage_is_mcss_bit_for_bit(tiny_gate, with_actions, replan):
    config = dataclasses.replace(CONFIG, replan_every=replan)
    same = [Sage(keep=1.0, penalty=0.0), Sage(prefix=4, keep=1.0, penalty=0.0), Sage(prefix=0)]
    found = run(Pushes(actions=with_actions), tiny_gate, ["mcss", *same], 4, config)
    for seed in range(4):
        mcss, *others = (unnamed(one) for one in found.episodes if one.seed == seed)
        assert others == [mcss] * 3
    assert found.effort.shared == 0.75
    apart = run(Pushes(actions=with_actions), tiny_gate, [same[1]], 4, config).episodes
    assert [unnamed(one) for one in apart] == [unnamed(one) for one in found.episodes if one.arm == "mcss"]


@KINDS
def test_arms_are_identical_until_the_first_choice_that_differs(tiny_gate, monkeypatch, with_actions):
    asked = traced(monkeypatch)
    found = run(Pushes(actions=with_actions), tiny_gate, ["mcss", Sage(keep=0.9, penalty=0.0)], 12)
    met_late, distinct = 0, set()
    for seed in range(12):
        ways = [[pair for pair in asked if pair[0].seed == seed and pair[0].arm.name.startswith(arm)]
                for arm in ("mcss", "sage")]  # fmt: skip
        assert [len(way) for way in ways] == [STEPS, STEPS]
        parted = False
        for (ask, chosen), (other_ask, other) in zip(*ways, strict=True):
            distinct |= {(seed, one.step, one.observation.tobytes()) for one in (ask, other_ask)}
            if parted:
                continue
            assert np.array_equal(ask.observation, other_ask.observation)
            if other.changed:
                parted = True
                met_late += ask.step > 0
            else:
                assert np.array_equal(chosen.actions, other.actions)
                assert np.array_equal(chosen.states, other.states)
                assert np.array_equal(chosen.energies, other.energies)
    assert met_late > 3
    assert found.effort.decisions == 2 * 12 * STEPS
    assert found.effort.planned == len(distinct)
    assert 0.05 < found.effort.shared < 0.5


def test_arms_in_the_same_state_share_one_planning(tiny_gate):
    planner = Pushes()
    effort = run(planner, tiny_gate, ["mcss", Sage(keep=1.0, penalty=0.0)], 3).effort
    assert effort.planned == 3 * STEPS
    assert planner.calls == [2, 2] * STEPS  # 3 states in blocks of 2, the last of which is filled up
    assert effort.steps == 6 * STEPS
    assert {*effort.seconds} == {"environment", "propose", "value", "gate", "select"}
    assert all(seconds > 0 for seconds in effort.seconds.values())


@KINDS
def test_the_executed_action_is_the_scored_one(tiny_gate, monkeypatch, with_actions):
    asked, scored, score = traced(monkeypatch), [], GateClass.step_energy

    def spy(self, states, actions, **more):
        scored.append(actions.clone())
        return score(self, states, actions, **more)

    monkeypatch.setattr(GateClass, "step_energy", spy)
    run(Pushes(actions=with_actions), tiny_gate, ["sage"], 1)
    assert len(asked) == len(scored) == STEPS
    for (_, answer), actions in zip(asked, scored, strict=True):
        assert actions.shape == (1, 10, 10, 2)
        executed = torch.from_numpy(answer.actions[0]).float()
        assert (actions[0, :, 0] == executed).all(-1).any()


# ---- company ---------------------------------------------------------------------------------------


@KINDS
def test_results_do_not_depend_on_width_block_order_or_company(tiny_gate, with_actions):
    planner = Pushes(actions=with_actions)
    wanted = by_cell(run(planner, tiny_gate, ARMS, 3).episodes)
    assert len(wanted) == 15
    for width, block in ((1, 1), (7, 3), (100, 32)):
        config = dataclasses.replace(CONFIG, width=width, block=block)
        assert by_cell(run(planner, tiny_gate, ARMS, 3, config).episodes) == wanted
    for arm in ARMS:
        for episode in run(planner, tiny_gate, [arm], [2]).episodes:
            assert episode == wanted[episode.cell]
    many = run(planner, tiny_gate, [Sage(prefix=20), *reversed(ARMS), Sage(prefix=2)], [2, 1]).episodes
    shared = [one for one in many if one.cell in wanted]
    assert len(shared) == 10
    assert all(wanted[one.cell] == one for one in shared)


def test_not_even_rounding_depends_on_company(tiny_gate):
    """The planner is always asked about as many observations, whoever is under way."""
    config = dataclasses.replace(CONFIG, block=4)
    wanted = by_cell(run(Rounding(), tiny_gate, ["mcss", "sage"], 7, config).episodes)
    for width in (2, 5, 50):
        for arms in (["sage"], ["random", "sage", "mcss"]):
            found = run(Rounding(), tiny_gate, arms, 7, dataclasses.replace(config, width=width)).episodes
            assert all(wanted[one.cell] == one for one in found if one.cell in wanted)


def test_inverse_dynamics_need_no_gate_and_a_gate_changes_nothing_for_mcss(tiny_gate):
    planner = Pushes(actions=False)
    without = run(planner, None, ["mcss", "random"], 3, inverse_dynamics=Between()).episodes
    beside = run(planner, tiny_gate, ["mcss", "random", "sage"], 3, inverse_dynamics=Between()).episodes
    beside = {one.cell: one for one in beside}
    for one in without:
        assert dataclasses.replace(beside[one.cell], prefix_energy=None, executed_energy=None, gap=None) == one


def test_other_seeds_give_other_episodes(tiny_gate):
    one = run(Pushes(), tiny_gate, ["mcss"], 4).episodes
    other = run(Pushes(), tiny_gate, ["mcss"], 4, dataclasses.replace(CONFIG, sampler_seed=1)).episodes
    gaps = [episode.gap for episode in (*one, *other)]
    assert len(set(gaps)) == 8


# ---- interruptions ---------------------------------------------------------------------------------


def test_what_is_recorded_is_not_run_again(tiny_gate, tmp_path):
    path = tmp_path / "episodes.jsonl"
    first = run(Pushes(), tiny_gate, ["mcss", "sage"], 3, records=path)
    planner = Pushes()
    again = run(planner, tiny_gate, ["mcss", "sage"], 3, records=path)
    assert again.episodes == first.episodes
    assert not planner.calls
    before = read_records(path)
    more = run(planner, tiny_gate, ["sage", "mcss", "random"], 5, records=path)
    assert more.effort.steps == (15 - 6) * STEPS
    assert read_records(path)[:6] == before
    assert by_cell(read_records(path)) == by_cell(more.episodes)
    assert by_cell(more.episodes) == by_cell(run(Pushes(), tiny_gate, ["mcss", "sage", "random"], 5).episodes)


def test_an_interrupted_evaluation_goes_on_to_the_same_records(tiny_gate, tmp_path, monkeypatch):
    wanted = by_cell(run(Pushes(), tiny_gate, ["mcss", "sage"], 6).episodes)
    path, planner = tmp_path / "episodes.jsonl", Pushes()
    propose, room = planner.propose, 17

    def breaks_down(*given):
        nonlocal room
        room -= 1
        if room < 0:
            room = 31
            raise KeyboardInterrupt
        return propose(*given)

    monkeypatch.setattr(planner, "propose", breaks_down)
    interruptions = 0
    while True:
        try:
            found = run(planner, tiny_gate, ["mcss", "sage"], 6, dataclasses.replace(CONFIG, width=3), records=path)
            break
        except KeyboardInterrupt:
            interruptions += 1
    assert interruptions > 2
    assert by_cell(found.episodes) == wanted
    assert by_cell(read_records(path)) == wanted


_SCRIPT = """
import sys, time, torch
sys.path.insert(0, sys.argv[1])
from toy_planner import Pushes, nearness, short
from sageplan import Gate
from sageplan.evaluation.config import RolloutConfig
from sageplan.evaluation.rollout import evaluate
torch.set_num_threads(1)
class Slow(Pushes):
    def propose(self, *given):
        time.sleep(0.002)
        return super().propose(*given)
config = RolloutConfig(candidates=10, block=2, width=6)
evaluate(Slow(), nearness, Gate.load(sys.argv[2]), short(), ["mcss", "sage"], 40, config, records=sys.argv[3])
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no kill -9 here")
def test_killed_at_any_moment_it_finishes_with_nothing_lost_and_nothing_twice(gate_folder, tmp_path):
    path = tmp_path / "episodes.jsonl"
    command = [sys.executable, "-c", _SCRIPT, str(Path(__file__).parent), str(gate_folder), str(path)]
    killed, seen = 0, 0
    for _ in range(2):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=os.environ)
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            if path.exists() and len(read_records(path)) >= seen + 6:
                break
            time.sleep(0.005)
        process.kill()
        killed += process.wait() == -signal.SIGKILL
        now = len(read_records(path))
        assert now >= seen + 6  # nothing lost, and some progress in every life
        seen = now
    assert killed == 2
    assert seen < 80
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "evaluate maze2d-umaze-v1: 960 of 960" in done.stderr
    lines = path.read_text().splitlines()
    assert len(lines) == len(set(lines)) == 81
    gate = Gate.load(gate_folder)
    assert by_cell(read_records(path)) == by_cell(run(Pushes(), gate, ["mcss", "sage"], 40).episodes)


def test_records_of_another_gate_planner_or_setting_are_not_continued(tiny_gate, tmp_path):
    path = tmp_path / "episodes.jsonl"
    run(Pushes(), tiny_gate, ["mcss"], 2, records=path, identity={"planner": "a"})
    same = {"records": path, "identity": {"planner": "a"}}
    run(Pushes(), tiny_gate, ["mcss"], 2, dataclasses.replace(CONFIG, width=1), **same)
    with pytest.raises(ConfigError, match=r"other settings \(planner 'a' instead of 'b'\)"):
        run(Pushes(), tiny_gate, ["mcss"], 2, records=path, identity={"planner": "b"})
    with pytest.raises(ConfigError, match=r"\(candidates 10 instead of 11\)"):
        run(Pushes(), tiny_gate, ["mcss"], 2, dataclasses.replace(CONFIG, candidates=11), **same)
    with pytest.raises(ConfigError, match=r"\(step_limit 12 instead of 5\)"):
        run(Pushes(), tiny_gate, ["mcss"], 2, task=short(steps=5), **same)
    with torch.no_grad():
        tiny_gate.predictor.action_in.weight += 1
    with pytest.raises(ConfigError, match=r"\(gate '\w{16}' instead of '\w{16}'\)"):
        run(Pushes(), tiny_gate, ["mcss"], 2, **same)


# ---- what goes wrong -------------------------------------------------------------------------------


def test_a_nan_from_the_environment_ends_it_and_keeps_what_is_finished(tiny_gate, tmp_path, monkeypatch):
    path, observe, calls = tmp_path / "episodes.jsonl", Maze2DWorld.observe, 0

    def breaks(self):
        nonlocal calls
        calls += 1
        state = observe(self)
        if calls > STEPS + 5:
            state[1, 2] = np.nan
        return state

    monkeypatch.setattr(Maze2DWorld, "observe", breaks)
    with pytest.raises(EvaluationError, match=r"maze2d-umaze-v1: the environment returned NaN .* of episode 1 of sage"):
        run(Pushes(), tiny_gate, ["mcss", "sage"], 3, dataclasses.replace(CONFIG, width=2), records=path)
    monkeypatch.undo()
    assert {episode.seed for episode in read_records(path)} == {0}
    finished = run(Pushes(), tiny_gate, ["mcss", "sage"], 3, records=path).episodes
    assert by_cell(finished) == by_cell(run(Pushes(), tiny_gate, ["mcss", "sage"], 3).episodes)


class Broken(Pushes):
    """Some candidates are NaN, or all are."""

    def __init__(self, every=3):
        super().__init__()
        self.every = every

    def propose(self, *given):
        plans = super().propose(*given)
        states, actions = plans.states.clone(), plans.actions.clone()
        states[:, :: self.every], actions[:, :: self.every] = np.nan, np.inf
        return Plans(states, actions)


def test_broken_candidates_are_never_chosen_but_by_chance(tiny_gate):
    for episode in run(Broken(), tiny_gate, ["mcss", "sage", "lowest-energy", "oracle"], 3).episodes:
        assert np.isfinite([episode.prefix_energy, episode.gap]).all()
    with pytest.raises(EvaluationError, match=r"actions are NaN or infinite.* in step \d+ of episode \d of random"):
        run(Broken(), tiny_gate, ["random"], 3)
    with pytest.raises(EvaluationError, match=r"in step 0 of episode 0 of mcss; all finished episodes are kept"):
        run(Broken(every=1), tiny_gate, ["mcss"], 3)


def test_what_cannot_work_is_said_at_once(tiny_gate, tmp_path):
    planner = Pushes()
    cases = [
        ({"selectors": ["sage"], "gate": None}, r"selector 'sage' needs a gate"),
        ({"selectors": ["oracle"], "task": short("hopper-medium-v2")}, r"in Maze2D at stride 1, not in hopper"),
        ({"episodes": 0}, r"episodes are a positive number"),
        ({"episodes": [1, 1]}, r"different seeds"),
        ({"planner": Pushes(stride=4)}, r"the gate was fitted at stride 1 and the planner plans at 4"),
        ({"planner": Pushes(stride=4), "gate": None, "config": dataclasses.replace(CONFIG, replan_every=2)},
         r"the planner's steps are 4 environment steps long"),
        ({"task": short("hopper-medium-v2")}, r"of size 4 and actions of size 2; hopper-medium-v2 has 11 and 3"),
        ({"task": short("maze2d-large-v1")}, r"fitted to maze2d-umaze.*, whose physics are not those of maze2d-large"),
        ({"task": "maze2d-umase"}, r"did you mean 'maze2d-umaze-v1'"),
    ]  # fmt: skip
    for changes, message in cases:
        given = {"planner": planner, "gate": tiny_gate, "selectors": ["mcss"], "config": CONFIG, **changes}
        with pytest.raises(ConfigError, match=message):
            run(records=tmp_path / "episodes.jsonl", **given)
    assert not planner.calls
    assert not list(tmp_path.iterdir())
    for setting in ("candidates", "replan_every", "prefix", "block", "width"):
        with pytest.raises(ConfigError, match=f"{setting} must be at least 1, got 0"):
            RolloutConfig(**{setting: 0})
    with pytest.raises(DataError, match=r"scale is \[4\] positive numbers"):
        run(planner, tiny_gate, ["mcss"], scale=[1, 1, 1, 0])
    with pytest.raises(ConfigError, match=r"proposes states only, so actions need inverse dynamics"):
        run(Pushes(actions=False), None, ["mcss"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plans: Plans(plans.states[:, :9], plans.actions[:, :9]), r"states of shape \(2, 9, 13, 4\), expected"),
        (lambda plans: Plans(plans.states[..., :3], plans.actions), r"states of shape \(2, 10, 13, 3\), expected"),
        (lambda plans: Plans(plans.states[:, :, :1], None), r"states of shape \(2, 10, 1, 4\), expected .* H ≥ 1"),
        (lambda plans: Plans(plans.states, plans.actions[:, :, :9]), r"actions of shape \(2, 10, 9, 2\), expected"),
    ],
)
def test_a_planner_that_answers_something_else_is_told_so(tiny_gate, monkeypatch, change, message):
    propose = Pushes.propose
    monkeypatch.setattr(Pushes, "propose", lambda *given: change(propose(*given)))
    with pytest.raises(DataError, match=message):
        run(Pushes(), tiny_gate, ["mcss"])


def test_so_is_a_scorer(tiny_gate):
    with pytest.raises(DataError, match=r"values of shape \(2,\), expected \(2, 10\)"):
        run(Pushes(), tiny_gate, ["mcss"], scorer=lambda plans: nearness(plans)[:, 0])


def test_plans_of_stride_and_plans_shorter_than_a_decision(tiny_gate):
    strided = run(Pushes(stride=5), None, ["mcss"], 2).episodes
    assert all(one.gap is None and one.decisions == STEPS for one in strided)
    short_plans = run(Pushes(length=2), tiny_gate, ["mcss"], 2, dataclasses.replace(CONFIG, replan_every=5)).episodes
    assert all(one.decisions == STEPS // 2 for one in short_plans)


def test_it_says_how_far_it_is_and_how_well_it_goes(tiny_gate, tmp_path, capsys, monkeypatch):
    more = {"records": tmp_path / "episodes.jsonl"}
    evaluate(Pushes(), nearness, tiny_gate, short(), ["mcss", "sage"], 2, CONFIG, **more)
    said = capsys.readouterr().err
    assert "evaluate maze2d-umaze-v1: 48 of 48" in said
    assert "left mcss " in said
    assert " · sage " in said
    jobs, job = [], Bars.job
    monkeypatch.setattr(Bars, "job", lambda self, *given: jobs.append(given) or job(self, *given))
    evaluate(Pushes(), nearness, tiny_gate, short(), ["mcss", "sage"], 3, CONFIG, **more)
    assert jobs == [("evaluate maze2d-umaze-v1", 72, 48)]
