"""Draw scenes with MuJoCo's offscreen renderer, in a process of its own.

Run by `rendering` with the arguments IN.npz OUT.npz: MUJOCO_GL has to be set before MuJoCo loads,
and a broken OpenGL driver may kill the process.
"""

import sys
from collections.abc import Mapping

import mujoco
import numpy as np

from gaitforge.collectors.rendering import colours
from gaitforge.collectors.rendering.colours import Colour
from gaitforge.collectors.robots.robot import JOINTS_PER_LEG, N_LEGS, RobotCard, load_robot

SUPERSAMPLING = 2
_SKY = (0.93, 0.95, 0.97)
_GROUND_TONES = ((0.82, 0.85, 0.88), (0.71, 0.75, 0.79))
_BARRIER_ALPHA = 0.42
_BARRIER_GLOW = 0.35
_GHOST_ALPHA = 0.45
_FIELD_OF_VIEW_DEG = 30.0
_DISTANCE_M = 2.25
_TARGET_ABOVE_GROUND_M = 0.24
# Azimuth from the robot's right side towards its front, and elevation, degrees, by passage.
_ANGLES = {"none": (28.0, -13.0), "bar": (12.0, -9.0), "walls": (58.0, -27.0)}
_SUN = (0.22, 0.16, -1.0)
_FOG_M = (2.6, 7.0)
_SHADOW_HALF_WIDTH_M = 3.0
_LAST_SHOWN_GROUP = 2
"""Last group of geoms that `mujoco.MjvOption` shows by default."""


Shot = Mapping[str, np.ndarray]
"""Arrays of frames to draw.

state (F, 19), ghost (F, 19) or (0, 19) for none, heights (ny, nx) from low_m (2,) at
resolution_m (), barriers (B, 7: centre, half size, yaw), view_pos (F, 3), view_yaw (F,),
passage (): its kind, "none" on open ground.
"""


def draw_shot(robot: RobotCard, shot: Shot, width_px: int, height_px: int) -> np.ndarray:
    """(F, height_px, width_px, 3) uint8."""
    size = (width_px * SUPERSAMPLING, height_px * SUPERSAMPLING)
    model = _build(robot, shot, size)
    data = mujoco.MjData(model)
    ghost = mujoco.MjData(model)
    qpos = [int(model.joint(name).qposadr[0]) for name in robot.joint_names]
    frames = []
    with mujoco.Renderer(model, size[1], size[0]) as renderer:
        renderer.scene.flags[mujoco.mjtRndFlag.mjRND_FOG] = True
        renderer.scene.flags[mujoco.mjtRndFlag.mjRND_HAZE] = True
        for k, (pos, yaw) in enumerate(zip(shot["view_pos"], shot["view_yaw"], strict=True)):
            _pose(model, data, qpos, shot["state"][k])
            mujoco.mj_camlight(model, data)
            _place_sun(data, pos, float(yaw))
            renderer.update_scene(data, _camera(robot, pos, float(yaw), str(shot["passage"])))
            if len(shot["ghost"]):
                _pose(model, ghost, qpos, shot["ghost"][k])
                _add_ghost(model, ghost, renderer.scene)
            pixels = renderer.render().reshape(height_px, SUPERSAMPLING, width_px, -1, 3)
            frames.append(pixels.mean(axis=(1, 3)).round().astype(np.uint8))
    return np.stack(frames)


def _pose(model: mujoco.MjModel, data: mujoco.MjData, qpos: list[int], state: np.ndarray) -> None:
    data.qpos[:7] = state[:7]
    data.qpos[qpos] = state[7:]
    mujoco.mj_kinematics(model, data)


def _add_ghost(model: mujoco.MjModel, data: mujoco.MjData, scene: mujoco.MjvScene) -> None:
    """Add a second, translucent robot to a scene."""
    first = scene.ngeom
    category = int(mujoco.mjtCatBit.mjCAT_DYNAMIC)
    mujoco.mjv_addGeoms(model, data, mujoco.MjvOption(), mujoco.MjvPerturb(), category, scene)
    for geom in scene.geoms[first : scene.ngeom]:
        geom.rgba[:] = [*_unit(colours.GHOST), _GHOST_ALPHA]


def _build(robot: RobotCard, shot: Shot, size: tuple[int, int]) -> mujoco.MjModel:
    """The robot's MJCF with the shot's ground, barriers, light and colours."""
    spec = mujoco.MjSpec.from_file(str(robot.mjcf_path))
    # The file's own lights come before ours, which `_place_sun` moves as the first.
    for element in [*spec.sensors, *spec.actuators, *spec.keys, *spec.lights]:
        spec.delete(element)
    _show_robot(spec)
    _colour_robot(spec, robot)
    _add_backdrop(spec)
    _add_ground(spec, shot)
    spec.add_material(
        name="gaitforge_barrier",
        rgba=[*_unit(colours.BARRIER), _BARRIER_ALPHA],
        emission=_BARRIER_GLOW,
    )
    for x, y, z, a, b, c, yaw in shot["barriers"].tolist():
        spec.worldbody.add_geom(
            type=mujoco.mjtGeom.mjGEOM_BOX,
            pos=[x, y, z],
            size=[a, b, c],
            quat=[np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2)],
            material="gaitforge_barrier",
        )
    spec.visual.global_.offwidth, spec.visual.global_.offheight = size
    spec.visual.global_.fovy = _FIELD_OF_VIEW_DEG
    spec.visual.quality.offsamples = 0
    spec.visual.quality.shadowsize = 1024
    return spec.compile()


def _show_robot(spec: mujoco.MjSpec) -> None:
    """Show the collision shapes of every body that has no others.

    The renderer hides groups 3 to 5, where mujoco_menagerie keeps its collision shapes.
    """
    for body in spec.bodies:
        if all(geom.group > _LAST_SHOWN_GROUP for geom in body.geoms):
            for geom in body.geoms:
                geom.group = 0


def _colour_robot(spec: mujoco.MjSpec, robot: RobotCard) -> None:
    for geom in spec.geoms:
        geom.rgba = [*_unit(colours.TRUNK), 1.0]
        geom.material = ""
    for leg in range(N_LEGS):
        thigh = spec.joint(robot.joint_names[JOINTS_PER_LEG * leg + 1]).parent
        colour = colours.LEFT_LEGS if robot.leg_signs[leg, 1] > 0 else colours.RIGHT_LEGS
        for geom in thigh.find_all("geom"):
            geom.rgba = [*_unit(colour), 1.0]
    for name in robot.foot_geoms:
        spec.geom(name).rgba = [*_unit(colours.FEET), 1.0]


def _add_backdrop(spec: mujoco.MjSpec) -> None:
    """A plain sky, a sun with shadows, fill light, and fog."""
    spec.add_texture(
        name="gaitforge_sky",
        type=mujoco.mjtTexture.mjTEXTURE_SKYBOX,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_FLAT,
        rgb1=_SKY,
        rgb2=_SKY,
        width=64,
        height=384,
    )
    spec.worldbody.add_light(
        type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL,
        diffuse=[0.52, 0.52, 0.50],
        specular=[0.0, 0.0, 0.0],
        castshadow=True,
    )
    light = spec.visual.headlight
    light.ambient = [0.38] * 3
    light.diffuse = [0.22] * 3
    light.specular = [0.0] * 3
    spec.stat.extent = 1.0  # the unit of fog and shadow sizes
    spec.visual.map.fogstart, spec.visual.map.fogend = _FOG_M
    spec.visual.map.shadowclip = _SHADOW_HALF_WIDTH_M
    spec.visual.rgba.fog = [*_SKY, 1.0]
    spec.visual.rgba.haze = [*_SKY, 1.0]


def _add_ground(spec: mujoco.MjSpec, shot: Shot) -> None:
    low = float(shot["heights"].min())
    high = float(shot["heights"].max())
    relief = max(high - low, 0.01)
    rows, columns = shot["heights"].shape
    half = np.array([columns - 1, rows - 1]) * float(shot["resolution_m"]) / 2
    spec.add_hfield(
        name="gaitforge_ground",
        size=[*half, relief, 0.1],
        nrow=rows,
        ncol=columns,
        userdata=((shot["heights"] - low) / relief).ravel().tolist(),
    )
    spec.add_texture(
        name="gaitforge_checker",
        type=mujoco.mjtTexture.mjTEXTURE_2D,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_CHECKER,
        rgb1=_GROUND_TONES[0],
        rgb2=_GROUND_TONES[1],
        width=256,
        height=256,
    )
    material = spec.add_material(name="gaitforge_ground", texuniform=True, texrepeat=[1.0, 1.0])
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "gaitforge_checker"
    spec.worldbody.add_geom(
        type=mujoco.mjtGeom.mjGEOM_HFIELD,
        hfieldname="gaitforge_ground",
        material="gaitforge_ground",
        pos=[*(shot["low_m"] + half), low],
    )


def _place_sun(data: mujoco.MjData, pos: np.ndarray, yaw: float) -> None:
    """Shine from above and behind, near the viewer: the shadow map covers a few metres only."""
    c = np.cos(yaw)
    s = np.sin(yaw)
    x, y, z = _SUN
    direction = np.array([c * x - s * y, s * x + c * y, z]) / np.linalg.norm(_SUN)
    data.light_xdir[0] = direction
    data.light_xpos[0] = pos - 3.0 * direction


def _camera(robot: RobotCard, pos: np.ndarray, yaw: float, passage: str) -> mujoco.MjvCamera:
    scale = robot.leg_length_m / 0.5
    forward, down = _ANGLES[passage]
    camera = mujoco.MjvCamera()
    camera.lookat[:] = pos
    camera.lookat[2] += _TARGET_ABOVE_GROUND_M * scale
    camera.distance = _DISTANCE_M * scale
    # Azimuth 90 looks along +y, at the right side of a robot that heads along +x.
    camera.azimuth = np.degrees(yaw) + 90.0 + forward
    camera.elevation = down
    return camera


def _unit(colour: Colour) -> list[float]:
    return [part / 255 for part in colour]


def main() -> None:
    """Draw the shots of one file into another."""
    source, target = sys.argv[1:]
    with np.load(source, allow_pickle=False) as request:
        robot = load_robot(str(request["robot"]))
        width, height = request["size_px"].tolist()
        shots: dict[str, dict[str, np.ndarray]] = {}
        for file in [file for file in request.files if "/" in file]:
            number, name = file.split("/")
            shots.setdefault(number, {})[name] = request[file]
        frames = {number: draw_shot(robot, shot, width, height) for number, shot in shots.items()}
    np.savez(target, allow_pickle=False, **frames)
