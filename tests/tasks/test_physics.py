import importlib.util
import sys

import numpy as np
import pytest

from sageplan.errors import ConfigError, MissingExtraError
from sageplan.tasks import antmaze, kitchen, locomotion
from sageplan.tasks.maze2d import Maze, PointMaze
from sageplan.tasks.physics import compile_model, gymnasium_spec, load_mujoco

mujoco = pytest.importorskip("mujoco")
pytest.importorskip("gymnasium")


RUNNERS = ("hopper", "halfcheetah", "walker2d")


def model_of(name, legacy):
    if name == "ant":
        return antmaze.load_model(Maze.named("umaze"), legacy=legacy)
    return locomotion.load_model(name, legacy=legacy)


@pytest.mark.parametrize("version", ["3.2.6", "2.3.7", "4.0.0", "4.1.2"])
def test_versions_outside_the_range_are_refused_by_every_task(monkeypatch, version):
    monkeypatch.setattr(mujoco, "__version__", version)
    message = rf"needs mujoco>=3\.2\.7,<4, but MuJoCo {version} is installed: pip install 'mujoco>=3\.2\.7,<4'"
    for make in (
        lambda: locomotion.Locomotion("hopper", 1),
        lambda: antmaze.AntMaze("medium", 1),
        lambda: PointMaze(Maze.named("umaze"), 1),
        lambda: kitchen.Kitchen("partial", 1),
    ):
        with pytest.raises(ConfigError, match=message):
            make()


@pytest.mark.parametrize("version", ["3.2.7", "3.3.0", "3.10.1", "3.17.0rc1"])
def test_versions_in_the_range_are_not(monkeypatch, version):
    monkeypatch.setattr(mujoco, "__version__", version)
    assert load_mujoco("a test") is mujoco


def test_what_is_missing_is_named(monkeypatch):
    found = importlib.util.find_spec
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None if name == "gymnasium" else found(name))
        with pytest.raises(MissingExtraError, match=r"hopper needs gymnasium: pip install 'sageplan\[tasks\]'"):
            locomotion.Locomotion("hopper", 1)
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(MissingExtraError, match=r"hopper needs mujoco: pip install 'sageplan\[tasks\]'"):
        locomotion.Locomotion("hopper", 1)


def test_legacy_capsules_weigh_what_a_cylinder_one_radius_longer_does():
    model = model_of("hopper", True)
    for body, radius, length in (("torso", 0.05, 0.4), ("thigh", 0.05, 0.45), ("leg", 0.04, 0.5), ("foot", 0.06, 0.39)):
        mass = 1000 * np.pi * radius**2 * (length + radius)
        side = mass * (3 * radius**2 + (length + radius) ** 2) / 12
        assert model.body(body).mass[0] == pytest.approx(mass, rel=1e-12)
        assert sorted(model.body(body).inertia) == pytest.approx([mass * radius**2 / 2, side, side], rel=1e-12)


def test_legacy_bodies_of_several_parts_add_up():
    ant = model_of("ant", True)
    leg = 5 * np.pi * 0.08**2 * (np.hypot(0.2, 0.2) + 0.08)
    assert ant.body("torso").mass[0] == pytest.approx(5 * 4 / 3 * np.pi * 0.25**3, rel=1e-12)
    assert ant.body("front_left_leg").mass[0] == pytest.approx(leg, rel=1e-12)
    # the cheetah's torso and head are one body; its centre is that of two cylinders
    torso, head = (0.046**2 * (length + 0.046) for length in (1.0, 0.3))
    centre = np.array([0.6, 0, 0.1]) * head / (torso + head)
    assert model_of("halfcheetah", True).body("torso").ipos == pytest.approx(centre, abs=1e-12)


@pytest.mark.parametrize("legacy", [True, False])
def test_the_cheetah_weighs_14(legacy):
    assert model_of("halfcheetah", legacy).body_mass.sum() == pytest.approx(14, rel=1e-9)


@pytest.mark.parametrize("name", [*RUNNERS, "ant"])
def test_without_legacy_capsules_are_exact_and_nothing_else_differs(name):
    legacy, modern = model_of(name, True), model_of(name, False)
    assert np.abs(legacy.body_mass - modern.body_mass).max() > 1e-3
    for field in ("geom_size", "geom_pos", "geom_friction", "geom_solref", "geom_solimp", "dof_damping", "dof_armature",
                  "jnt_range", "jnt_stiffness", "actuator_gear", "body_pos", "qpos0"):  # fmt: skip
        assert np.array_equal(getattr(legacy, field), getattr(modern, field)), field
    assert legacy.opt.timestep == modern.opt.timestep


@pytest.mark.parametrize("name", [*RUNNERS, "ant"])
def test_all_margins_of_a_model_are_the_same_which_makes_halving_them_exact(name):
    assert len(set(model_of(name, False).geom_margin)) == 1


def test_legacy_contacts_begin_at_the_larger_margin():
    gap_at_first_contact = {}
    for legacy in (True, False):
        model = model_of("hopper", legacy)
        data = mujoco.MjData(model)
        for gap in np.arange(0.0030, 0, -0.0001):
            data.qpos[:] = model.qpos0
            data.qpos[1] += gap - 0.04  # at qpos0 the foot hangs 0.04 above the floor
            mujoco.mj_forward(model, data)
            if data.ncon:
                gap_at_first_contact[legacy] = round(gap, 4)
                break
    recent = tuple(map(int, mujoco.__version__.split(".")[:2])) >= (3, 5)
    assert gap_at_first_contact[True] == pytest.approx(0.001, abs=1.5e-4)
    assert gap_at_first_contact[False] == pytest.approx(0.002 if recent else 0.001, abs=1.5e-4)


def test_compiling_warns_of_nothing(recwarn):
    for name in (*RUNNERS, "ant"):
        model_of(name, True)
    compile_model(mujoco, gymnasium_spec(mujoco, "half_cheetah.xml", "a test"), legacy=False)
    assert not recwarn.list
