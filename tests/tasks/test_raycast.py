"""Pictures without OpenGL, of scenes whose pixels can be worked out by hand."""

import numpy as np
import pytest

from sageplan.tasks.raycast import Camera, geom_colours, picture

mujoco = pytest.importorskip("mujoco")

SCENE = """<mujoco>
  <asset><material name="blue" rgba="0 0 1 1"/></asset>
  <worldbody>
    <geom type="box" size="1 1 .1" rgba="1 0 0 1"/>
    <geom type="sphere" pos="3 0 0" size=".5" material="blue"/>
    <geom type="sphere" pos="0 0 1" size=".4" group="3" rgba="0 1 0 1"/>
  </worldbody>
</mujoco>"""


@pytest.fixture(scope="module")
def scene():
    model = mujoco.MjModel.from_xml_string(SCENE)
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    return model, data


def test_rays_of_a_camera():
    rays = Camera((0, -4, 0), (0, 0, 0), view=90).rays(3, 5)
    assert rays.shape == (5, 3, 3)
    np.testing.assert_allclose(np.linalg.norm(rays, axis=-1), 1)
    np.testing.assert_allclose(rays[2, 1], [0, 1, 0], atol=1e-12)  # the middle looks ahead
    assert rays[0, 1, 2] > 0 > rays[4, 1, 2]  # the top row looks up
    assert rays[2, 0, 0] < 0 < rays[2, 2, 0]  # and the left column to the left
    assert rays[0, 1, 2] / rays[0, 1, 1] == pytest.approx(0.8)  # the middle of a pixel of 0.4


def test_colours_come_from_the_geom_or_its_material(scene):
    assert geom_colours(scene[0]).tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]


def test_a_box_from_above(scene):
    """At a distance of 2.9 and with 90 degrees of view, the side of the box takes 1/2.9 of the picture."""
    image = picture(mujoco, *scene, Camera((0, -1e-6, 3), (0, 0, 0), view=90), 145, 145)
    assert (image.shape, image.dtype) == ((145, 145, 3), np.uint8)
    red = (image[..., 0] > 100) & (image[..., 1] == 0)
    rows, columns = np.flatnonzero(red.any(1)), np.flatnonzero(red.any(0))
    assert abs(len(rows) - 145 / 2.9) <= 1
    assert abs(len(columns) - 145 / 2.9) <= 1
    assert abs(rows.mean() - 72) <= 0.5
    assert len(np.unique(image[red], axis=0)) == 1, "a flat face has one shade"
    assert not (image[..., 1][red]).any()
    assert image[0, 0].tolist() == [222, 228, 235], "the sky"


def test_groups_choose_what_is_seen_and_round_things_are_shaded(scene):
    camera = Camera((3, -4, 0), (3, 0, 0))
    ball = picture(mujoco, *scene, camera, 61, 61)
    shades = ball[30, 20:41, 2]
    assert ball[30, 30, :2].tolist() == [0, 0]
    assert len(np.unique(shades)) > 5
    above = picture(mujoco, *scene, Camera((0, -1, 3), (0, 0, 1)), 41, 41, groups=(3,))
    assert above[20, 20, 1] > 100
    assert above[20, 20, 0] == 0
