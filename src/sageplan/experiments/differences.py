"""The size of what is known to differ from D4RL's simulations, where that can be had without D4RL."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sageplan.experiments.behaviour import StoredPolicy
from sageplan.tasks import antmaze, kitchen, locomotion
from sageplan.tasks.catalogue import Task
from sageplan.tasks.kitchen import JOINTS
from sageplan.tasks.maze2d import Maze
from sageplan.tasks.physics import load_mujoco
from sageplan.tasks.world import Float64Array
from sageplan.types import BoolArray

_STEPS = 2000  # of every runner
_KITCHENS, _KITCHEN_STEPS = 60, 150
_MOVED = 0.01  # metres or radians
_NUDGE = 1e-6  # of every position at the start, to see how much any difference at all makes
_KETTLE_HEIGHT = 25  # among the positions


def warm_start_effect(name: str, policy: StoredPolicy, seed: int) -> dict[str, Any]:
    """Difference of one step that begins with the contact forces of the step before, as in D4RL, and one without.

    The first goes on from step to step, under the policy; the second starts from its state each time.
    """
    mujoco, kind = load_mujoco(name), locomotion.KINDS[name]
    model = locomotion.load_model(name, legacy=True)
    world = locomotion.Locomotion(name, 1)
    rng, episodes = np.random.default_rng([seed, 2]), 0
    warm, cold = mujoco.MjData(model), mujoco.MjData(model)
    differences: list[float] = []
    over = True
    while len(differences) < _STEPS:
        if over:
            world.reset(0, np.random.default_rng([seed, 3, episodes]))
            start, episodes = world.info(0), episodes + 1
            mujoco.mj_resetData(model, warm)
            warm.qpos[:], warm.qvel[:] = start["qpos"], start["qvel"]
        mujoco.mj_resetData(model, cold)
        cold.qpos[:], cold.qvel[:] = warm.qpos, warm.qvel
        warm.ctrl[:] = policy(_observed(kind, warm), rng)[0]
        cold.ctrl[:] = warm.ctrl
        for data in (warm, cold):
            mujoco.mj_step(model, data, kind.frame_skip)
        differences.append(float(np.abs(_observed(kind, warm) - _observed(kind, cold)).max()))
        over = bool(locomotion.fallen(name, warm.qpos[None], warm.qvel[None])[0])
    world.close()
    median, p95 = np.quantile(differences, [0.5, 0.95])
    return {"world": name, "steps": _STEPS, "median": float(median), "p95": float(p95), "max": max(differences)}


def _observed(kind: locomotion.Kind, data: Any) -> Float64Array:
    return locomotion.observation(kind, np.array(data.qpos)[None], np.array(data.qvel)[None])


def touches_wall(task: Task, states: npt.NDArray[Any], actions: npt.NDArray[Any]) -> BoolArray:
    """[N] whether an ant touches a wall within one step from states [N, 29] under actions [N, 8]."""
    mujoco = load_mujoco("AntMaze")
    model = antmaze.load_model(Maze.named(task.world), legacy=True)
    data = mujoco.MjData(model)
    wall = model.geom_type == mujoco.mjtGeom.mjGEOM_BOX
    touching = np.zeros(len(states), np.bool_)
    for row, (state, action) in enumerate(zip(states, actions, strict=True)):
        mujoco.mj_resetData(model, data)
        data.qpos[:], data.qvel[:] = state[: model.nq], state[model.nq :]
        data.ctrl[:] = antmaze.TORQUE * np.clip(action, -1, 1)
        for _ in range(antmaze.FRAME_SKIP):
            mujoco.mj_step(model, data)
            touching[row] |= wall[data.contact.geom].any()
    return touching


def kitchen_effects(seed: int) -> dict[str, Any]:
    """What the contact margins and the collision detection of later MuJoCo change in Kitchen.

    Resting height of the kettle after 25 steps without action; and in how many kitchens an object ends elsewhere
    under the same smooth random actions and noise.
    """
    mujoco = load_mujoco("Kitchen")
    native = getattr(mujoco.mjtDisableBit, "mjDSBL_NATIVECCD", None)
    usual = _shaken(seed, legacy=True)
    start = kitchen.START[JOINTS:]
    margins = _shaken(seed, legacy=False)
    record: dict[str, Any] = {
        "kitchens": _KITCHENS,
        "steps": _KITCHEN_STEPS,
        "kettle_height": {"legacy": _resting_height(True), "modern": _resting_height(False)},
        "moved_something": _share(usual - start),
        "margins": _share(margins - usual),
        "nudge": _NUDGE,
        "nudged": _share(_shaken(seed, legacy=True, nudge=_NUDGE) - usual),
        "collision_detection": None,
    }
    if native is not None:
        model = kitchen.Kitchen("partial", 1).model
        model.opt.disableflags |= int(native)
        try:
            record["collision_detection"] = _share(_shaken(seed, legacy=True) - usual)
        finally:
            model.opt.disableflags &= ~int(native)
    return record


def _shaken(seed: int, *, legacy: bool, nudge: float = 0.0) -> Float64Array:
    """[B, 21] where the objects are in the end."""
    world = kitchen.Kitchen("partial", _KITCHENS, legacy=legacy)
    rng = np.random.default_rng([seed, 4])
    for index in range(_KITCHENS):
        world.reset(index, np.random.default_rng([seed, 5, index]))
        world.set_positions(index, kitchen.START + nudge)
    actions, live = np.zeros((_KITCHENS, JOINTS)), np.ones(_KITCHENS, np.bool_)
    for _ in range(_KITCHEN_STEPS):
        actions = 0.9 * actions + 0.4 * rng.standard_normal(actions.shape)
        world.step(actions, live)
    ends = np.stack([world.info(index)["qpos"][JOINTS:] for index in range(_KITCHENS)])
    world.close()
    return ends


def _resting_height(legacy: bool) -> float:
    world = kitchen.Kitchen("partial", 1, legacy=legacy)
    world.reset(0, np.random.default_rng(0))
    for _ in range(25):
        world.step(np.zeros((1, JOINTS)), np.ones(1, np.bool_))
    height = float(world.info(0)["qpos"][_KETTLE_HEIGHT])
    world.close()
    return height


def _share(change: Float64Array) -> float:
    return float((np.abs(change).max(1) > _MOVED).mean())
