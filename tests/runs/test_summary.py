"""What a run's records say, against numbers worked out by hand; and several runs side by side."""

import json
import shutil

import numpy as np
import pytest

from sageplan.errors import ConfigError
from sageplan.runs.compare import compare
from sageplan.runs.effort import EFFORT, add_effort, total_effort
from sageplan.runs.folder import Run
from sageplan.runs.summary import summarise


def scores(run, arm, metric="sticky_score"):
    return np.array([getattr(e, metric) for e in sorted(run.episodes(), key=lambda e: e.seed) if e.arm == arm])


def rewrite(run, change):
    """Records with episodes changed, and their header as it was."""
    header, *lines = run.records.read_text().splitlines()
    changed = [json.dumps(change(json.loads(line))) for line in lines]
    run.records.write_text("\n".join([header, *changed]) + "\n")


def spread(record):
    """Scores that differ from arm to arm and from seed to seed."""
    better = {"mcss": 0.0, "sage": 5.0, "random": -20.0}[record["arm"]]
    return record | {"sticky_score": 10.0 * record["seed"] + better + record["seed"] % 2, "filter_changed": 1}


def test_arms_and_differences_are_those_of_the_records(finished):
    rewrite(finished, spread)
    found = summarise(finished)
    assert list(found["arms"]) == ["mcss", "sage", "random"]
    sage = found["arms"]["sage"]
    assert sage["sticky_score"]["mean"] == pytest.approx(np.mean([5, 16, 25]))
    assert sage["sticky_score"]["se"] == pytest.approx(np.std([5, 16, 25], ddof=1) / np.sqrt(3))
    assert sage["filter_changed"] == pytest.approx(3 / sage["decisions"])
    gap = found["differences"]["sage"]["sticky_score"]
    assert (gap["episodes"], gap["control"]["mean"]) == (3, pytest.approx(np.mean([0, 11, 20])))
    assert gap["paired"]["delta"] == gap["paired"]["low"] == gap["paired"]["high"] == 5.0
    assert gap["paired"]["t"] is None  # infinite, which JSON cannot say
    assert gap["welch"]["low"] < 0 < gap["welch"]["high"]
    assert found["differences"].keys() == {"sage", "random"}
    assert found["metrics"] == ["sticky_score", "score"]
    json.dumps(found, allow_nan=False)


def test_effort_adds_up_over_sessions(finished):
    path = finished.path / EFFORT
    first = total_effort(path)
    session = json.loads(path.read_text())["sessions"][0]
    add_effort(path, session | {"decisions": 7, "seconds": {"propose": 1.5}})
    found = total_effort(path)
    assert found["decisions"] == first["decisions"] + 7
    assert found["seconds"]["propose"] == pytest.approx(first["seconds"]["propose"] + 1.5)
    assert found["seconds"]["value"] == first["seconds"]["value"]
    assert total_effort(path.with_name("none")) is None


def another(run, folder, *, seed, shift):
    """The same run as if it had been trained with another seed, and done so much better."""
    copy = Run.open(shutil.copytree(run.path, folder))
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | {"seed": seed}))
    rewrite(copy, lambda e: e | {"sticky_score": e["sticky_score"] + shift * (e["arm"] == "sage")})
    return Run.open(folder)


def test_runs_side_by_side(finished, tmp_path):
    rewrite(finished, spread)
    runs = [finished, another(finished, tmp_path / "b", seed=1, shift=2.0)]
    found = compare(runs, resamples=200)
    assert [row["paired"]["delta"] for row in found["runs"]] == [5.0, 7.0]
    assert found["paired"]["all"]["delta"] == found["paired"]["maze2d"]["delta"] == pytest.approx(6.0)
    assert found["paired"]["all"]["low"] == pytest.approx(6.0)  # without variance within a run
    assert found["unpaired"]["all"]["low"] < 0
    (seeds,) = found["training_seeds"]
    assert seeds["treatment"]["training_seeds"] == 2
    assert seeds["treatment"]["se"] == pytest.approx(1.0)  # between 15⅓ and 17⅓
    assert compare(runs[:1], resamples=50)["training_seeds"] == []


def test_what_cannot_be_compared_is_refused(finished, tmp_path):
    with pytest.raises(ConfigError, match="no runs"):
        compare([])
    with pytest.raises(ConfigError, match=r"given twice: maze2d-umaze-v1 cpu 0"):
        compare([finished, finished])
    with pytest.raises(ConfigError, match="no episode seed that both oracle and mcss"):
        compare([finished], "oracle")


def test_one_episode_has_a_mean_and_no_interval(start):
    run = start(episodes=1)
    found = summarise(run)
    assert found["differences"]["sage"]["sticky_score"] is None
    assert compare([run], resamples=20)["runs"][0]["paired"] is None
