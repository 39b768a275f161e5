"""`gaitforge robot init` and `vary`; `gaitforge expert import`, `trust`, `template` and `check`."""

import argparse
from dataclasses import asdict
from pathlib import Path

from gaitforge.collectors.robots.robot import KNEES, load_robot
from gaitforge.pipeline.cli.parsing.options import (
    JSON,
    SEED,
    Option,
    flag,
    group,
    needs,
    option,
    option_values,
)
from gaitforge.pipeline.cli.parsing.parser import command
from gaitforge.pipeline.cli.parsing.values import (
    by_joint,
    half_sizes,
    names,
    positive,
    ranges_by_joint,
)
from gaitforge.pipeline.cli.robots import PICTURE, SIZES, check_record, draw_picture, show_checked
from gaitforge.pipeline.terminal import TerminalReporter, fields_of, show, show_one


def _joint_option(name: str, text: str) -> Option:
    """Values of joints; may be repeated."""
    help_text = f"{text} of joints: by a joint's name, or hip, thigh, calf of all legs"
    form = "JOINT=X,..."
    return option(name, help_text, by_joint, [], action="extend", metavar=form)


_BY_JOINT = {
    "limits": "limit",
    "torque_nm": "torque",
    "pose_rad": "pose",
    **{name: name for name in ("kp", "kd", "armature", "damping")},
}
"""Field of `Answers` -> the option with its values by joint."""


@command(
    "gaitforge robot init mujoco_menagerie/unitree_a1/a1.xml --out robots/a1",
    option("mjcf", "an MJCF or URDF of a quadruped, as in mujoco_menagerie", Path, metavar="FILE"),
    option("--out", "folder to write: card and MJCF", Path, required=True),
    PICTURE,
    JSON,
    group(
        "what the file does not say, or others than it says",
        option("--name", "the robot's name (default: the MJCF's model)"),
        option("--weld", "joints to fix, as an arm's, comma-separated", names, ()),
        option(
            "--limit",
            "ranges of joints, rad: by a joint's name, or hip, thigh, calf of all legs",
            ranges_by_joint,
            [],
            action="extend",
            metavar="JOINT=LOW:HIGH,...",
        ),
        _joint_option("--torque", "torque limits, Nm,"),
        _joint_option("--pose", "default angles, rad,"),
        option("--knees", "where knees point", choices=KNEES, metavar="|".join(KNEES)),
        _joint_option("--kp", "stiffness, Nm/rad,"),
        _joint_option("--kd", "damping gains, Nms/rad,"),
        _joint_option("--armature", "rotor inertias, kg m2,"),
        _joint_option("--damping", "passive damping, Nms/rad,"),
        option(
            "--trunk-box", "half sizes in m of a box for the trunk", half_sizes, metavar="X,Y,Z"
        ),
        flag("--leave-out-meshes", "go on without colliding meshes whose files are missing"),
    ),
    needs("sim"),
)
def robot_init(arguments: argparse.Namespace) -> None:
    """Write a robot's folder, card and MJCF, from an MJCF or URDF of any making."""
    from gaitforge.plugins.robots.describing.describe import init_robot
    from gaitforge.plugins.robots.describing.notes import Answers

    names = ("name", "weld", "knees", "leave_out_meshes")
    values = option_values(arguments, *names, trunk_half_size_m="trunk_box")
    values |= {field: dict(getattr(arguments, name)) for field, name in _BY_JOINT.items()}
    answers = Answers(**values)
    described = init_robot(arguments.mjcf, arguments.out, answers)
    if arguments.json:
        decisions = [asdict(decision) for decision in described.decisions]
        checked = check_record(described.findings)
        show_one({"decisions": decisions, "check": checked}, as_json=True)
    else:
        for decision in described.decisions:
            print(f"{decision.what}: {decision.value} ({decision.source})")
        print()
        show_checked(described.findings)
    draw_picture(described.robot, arguments.picture)


@command(
    "gaitforge robot vary aliengo --count 100 --out robots/family",
    option("robot", "a shipped robot, or a folder or card as for check"),
    option("--count", "bodies of the family", positive, 100),
    option("--out", "folder of the bodies' folders", Path, required=True),
    SEED,
    JSON,
    needs("sim"),
)
def robot_vary(arguments: argparse.Namespace) -> None:
    """Write bodies drawn around a robot: other sizes, masses, links and gains."""
    from gaitforge.plugins.robots.varying import vary_robots

    robot = load_robot(arguments.robot)
    seed = arguments.seed or 0
    count = arguments.count
    out = arguments.out
    with TerminalReporter().step(f"vary {robot.name}", count, "robot") as advance:
        bodies = vary_robots(robot, seed, count, out, lambda: advance(1, ""))
    show(
        [{**fields_of(body, "name", *SIZES), "folder": str(body.path.parent)} for body in bodies],
        arguments.json,
    )


@command(
    "gaitforge expert import policy.onnx --out my-expert --robot go1",
    option("policy", "a policy's ONNX or TorchScript file; no checkpoint", Path, metavar="FILE"),
    flag(
        "--trust",
        "let a TorchScript file run, now and later: it is a program that can read and overwrite "
        "any of your files, so only where you know who made it",
    ),
    option(
        "--out",
        "new folder; its last part is the expert's name",
        Path,
        required=True,
        also=("--name",),
        dest="name",
    ),
    option("--robot", "the robot's name or path (default: the layout's)", default=""),
    option("--layout", "what it observes, as gaitforge expert template prints", Path),
    option("--answers", "known answers, for expert check: JSON or NPZ", Path, metavar="FILE"),
    option(
        "--gains",
        "where the policy's gains are not the robot's: policy, to write a robot with its gains and "
        "default pose, or robot, to keep the robot",
        choices=("policy", "robot"),
        default="",
    ),
    JSON,
    needs("sim"),
)
def expert_import(arguments: argparse.Namespace) -> None:
    """Import a policy of mjlab, Isaac Lab or legged_gym as an expert."""
    from gaitforge.collectors.experts.expert import load_expert
    from gaitforge.plugins.robots.imported_experts.importing import import_expert, imported_policy

    names = ("name", "robot", "layout", "answers", "gains")
    values = [getattr(arguments, name) for name in names]
    import_expert(arguments.policy, *values, trust=arguments.trust)
    name = str(arguments.name)
    policy = imported_policy(name)
    layout = imported_policy(name).layout
    row = {"expert": name, "hash": load_expert(name).hash, "robot": policy.robot.name}
    row |= {"terms": ",".join(term.name for term in layout.terms), "control_hz": layout.control_hz}
    show_one(row, arguments.json)


@command(
    "gaitforge expert trust my-expert",
    option("expert", "folder that gaitforge expert import wrote", Path, metavar="NAME"),
)
def expert_trust(arguments: argparse.Namespace) -> None:
    """Let the TorchScript program of an expert run, for which you know its maker."""
    from gaitforge.plugins.robots.imported_experts.importing import trust_expert
    from gaitforge.plugins.robots.imported_experts.networks import trusted_list

    print(f"{trust_expert(arguments.expert)} may run: its SHA-256 is in {trusted_list()}")


@command(
    "gaitforge expert template mjlab > layout.yaml",
    option("project", "isaaclab, legged_gym or mjlab", metavar="NAME"),
    needs("sim"),
)
def expert_template(arguments: argparse.Namespace) -> None:
    """Print the layout of a project's usual policy, to fill in."""
    from gaitforge.plugins.robots.imported_experts.importing import template

    print(template(arguments.project), end="")


@command(
    "gaitforge expert check my-expert",
    option("expert", "folder that gaitforge expert import wrote", metavar="NAME"),
    option("--answers", "known answers (default: the imported ones)", Path, metavar="FILE"),
    JSON,
    needs("sim"),
)
def expert_check(arguments: argparse.Namespace) -> int:
    """Check an imported expert: known answers, a stand, a walk, its terms; exit 1 on a fault."""
    from gaitforge.plugins.robots.imported_experts.checking import check_imported
    from gaitforge.plugins.robots.imported_experts.importing import imported_policy

    policy = imported_policy(arguments.expert)
    findings = check_imported(policy, arguments.answers or Path(arguments.expert))
    if arguments.json:
        show_one(asdict(findings), as_json=True)
    else:
        show(list(findings.terms), as_json=False)
        print()
        show_one(findings.figures, as_json=False)
        print("\n".join(f"warning: {warning}" for warning in findings.warnings))
    return 1 if findings.warnings else 0
