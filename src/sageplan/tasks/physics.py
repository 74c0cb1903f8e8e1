"""MuJoCo as D4RL knew it: which versions will do, and models with version 2.0's capsules and contact margins."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from sageplan.errors import ConfigError, MissingExtraError

SUPPORTED = "mujoco>=3.2.7,<4"
_OLDEST, _TOO_NEW = (3, 2, 7), (4,)
_MARGINS_ARE_ADDED = (3, 5)


def load_mujoco(purpose: str) -> Any:
    """The module. Late, because layouts, rewards and the catalogue are of use without the simulator."""
    try:
        import mujoco
        import mujoco.rollout
    except ImportError as error:
        raise MissingExtraError("mujoco", "tasks", purpose) from error
    if not _OLDEST <= _version(mujoco) < _TOO_NEW:
        raise ConfigError(
            f"{purpose} needs {SUPPORTED}, but MuJoCo {mujoco.__version__} is installed: pip install '{SUPPORTED}'"
        )
    return mujoco


def gymnasium_spec(mujoco: Any, file: str, purpose: str) -> Any:
    """One of Gymnasium's own models, to be edited. Gymnasium itself is not imported."""
    package = importlib.util.find_spec("gymnasium")
    if package is None or not package.submodule_search_locations:
        raise MissingExtraError("gymnasium", "tasks", purpose)
    return mujoco.MjSpec.from_file(f"{package.submodule_search_locations[0]}/envs/mujoco/assets/{file}")


def compile_model(mujoco: Any, spec: Any, *, legacy: bool) -> Any:
    """The model of a spec; with `legacy`, what has changed since MuJoCo 2.0 is undone in it.

    Before 2.1.2 a capsule had the mass and inertia of a cylinder as long as its middle part plus one radius.
    Until 3.5 a contact began at the larger of two geoms' margins, since then at their sum.
    """
    total_mass, spec.compiler.settotalmass = spec.compiler.settotalmass, -1  # deprecated, so done below
    if legacy:
        _set_legacy_inertia(mujoco, spec)
        if _version(mujoco) >= _MARGINS_ARE_ADDED:
            for geom in spec.geoms:  # exact because all geoms of one of D4RL's models have the same margin
                geom.margin /= 2
    model = spec.compile()
    if total_mass > 0:
        mujoco.mj_setTotalmass(model, total_mass)
        mujoco.mj_setConst(model, mujoco.MjData(model))
    return model


def _set_legacy_inertia(mujoco: Any, spec: Any) -> None:
    """Through the spec rather than into a compiled model, whose shortcuts for aligned bodies depend on inertia."""
    heavy = _with_cylinders(mujoco, spec).compile()
    spec.compiler.inertiafromgeom = mujoco.mjtInertiaFromGeom.mjINERTIAFROMGEOM_FALSE
    for number, body in enumerate(_depth_first(spec.worldbody)):
        body.explicitinertial = True
        body.mass, body.inertia = heavy.body_mass[number], heavy.body_inertia[number]
        body.ipos, body.iquat = heavy.body_ipos[number], heavy.body_iquat[number]


def _with_cylinders(mujoco: Any, spec: Any) -> Any:
    """The same bodies with cylinders for capsules, of which MuJoCo then computes the inertia."""
    exact = spec.compile()  # where `fromto` has become position, orientation and length
    twin = spec.copy()
    for number, geom in enumerate(twin.geoms):
        if geom.type == mujoco.mjtGeom.mjGEOM_CAPSULE:
            radius, half_length, _ = exact.geom_size[number]
            geom.type = mujoco.mjtGeom.mjGEOM_CYLINDER
            geom.fromto = np.full(6, np.nan)
            geom.size = [radius, half_length + radius / 2, 0]
            geom.pos, geom.quat = exact.geom_pos[number], exact.geom_quat[number]
    return twin


def _depth_first(body: Any) -> Iterator[Any]:
    """The order of compiled models; 3.2.7 lists a spec's bodies in another and does not number them."""
    yield body
    for child in body.bodies:
        yield from _depth_first(child)


def _version(mujoco: Any) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", mujoco.__version__)[:3])
