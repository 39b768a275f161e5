"""Exported policies: what runs elsewhere is what was trained, and says all that is needed."""

import io
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from gaitforge.learners.control.control import LearnedPolicy
from gaitforge.learners.control.step_modules import PolicyStep
from gaitforge.learners.export.export import PolicyExportOptions, export_policy, to_onnx, trace
from gaitforge.learners.export.onnx_policy import OnnxPolicy
from gaitforge.learners.models.fcnet import FCNet, FCNetConfig
from gaitforge.learners.policy_network import Normaliser, PolicyNetwork
from gaitforge.learners.tokens import TokenLayout
from tests.learners.control.exporting import FACTS, LONG, RETURN_SCALE, export_small, small_policy
from tests.learners.making import NETWORKS, OBS_SLICES, RETURN_KINDS, Seen

ROOT = Path(__file__).resolve().parents[3]
PT2_ONLY, PT2_FILES = PolicyExportOptions(("pt2",)), {"policy.pt2", "policy.json"}
VARIANTS = [(kind, "return" if kind in ("fcnet", *RETURN_KINDS) else "obs") for kind in NETWORKS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small FCNet, exported with all formats."""
    path = tmp_path_factory.mktemp("export") / "fcnet"
    export_small(path)
    return path


def described(folder: Path) -> dict:
    return json.loads((folder / "policy.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "tokens"), VARIANTS)
def test_onnx_and_pt2_act_like_the_parallel_form(kind: str, tokens: str, tmp_path: Path) -> None:
    policy, _ = small_policy(kind, tokens)
    result = export_small(tmp_path / "out", kind, tokens)
    assert max(result.errors.values()) <= 1e-5
    description = described(tmp_path / "out")
    session = onnxruntime.InferenceSession(tmp_path / "out" / "policy.onnx")
    program = torch.export.load(tmp_path / "out" / "policy.pt2").module()

    obs, target = torch.randn(1, LONG, 70), torch.rand(1, LONG) * RETURN_SCALE
    with torch.no_grad():
        expected = policy(obs, policy.share(target)[..., None])[0].numpy()
    state = {
        each["input"]: np.full(each["shape"], float(each["fill"]), each["dtype"])
        for each in description["state"]
    }
    program_state = [torch.from_numpy(value) for value in state.values()]
    for t in range(LONG):
        inputs = {"observation": obs[:, t].numpy()}
        if policy.conditioned:
            inputs["return_to_go"] = target[:, t].numpy()
        results: Any = session.run(None, inputs | state)
        outputs = dict(zip(description["outputs"], results, strict=True))
        state = {each["input"]: outputs[each["output"]] for each in description["state"]}
        given = [torch.from_numpy(value) for value in inputs.values()]
        action, *program_state = program(*given, *program_state)
        np.testing.assert_allclose(outputs["action"][0], expected[t], atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(action[0].numpy(), expected[t], atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "tokens"), [("fcnet", "return"), ("transformer", "obs")])
def test_the_runner_is_the_learned_policy(kind: str, tokens: str, tmp_path: Path) -> None:
    export_small(tmp_path / "out", kind, tokens, PolicyExportOptions(("onnx",), batch_size=2))
    exported = OnnxPolicy(tmp_path / "out", num_robots=5, return_target=0.8)
    trained = LearnedPolicy(small_policy(kind, tokens)[0], num_robots=5, return_target=0.8)
    rng = np.random.default_rng(0)
    for t in range(LONG):
        if t in (0, 4, 11):
            ids = np.arange(5) if t == 0 else np.array([1, 4])
            exported.reset(ids)
            trained.reset(ids)
        seen = Seen(
            rng.standard_normal((5, 70), dtype=np.float32), rng.random(5).astype(np.float32)
        )
        action = exported.act(seen)
        assert (action.shape, action.dtype) == ((5, 12), np.float32)
        np.testing.assert_allclose(action, trained.act(seen), atol=5e-5)


@pytest.mark.slow
def test_a_step_takes_as_many_operations_at_any_context_length() -> None:
    counts = []
    for n in (6, 48):
        network = FCNet(FCNetConfig(16, 8, 2, 3, n), 71, 12)
        ones = Normaliser.identity
        policy = PolicyNetwork(network, TokenLayout("return", OBS_SLICES), ones(70), ones(12))
        module = PolicyStep(policy)
        counts.append(len(onnx.load_from_string(to_onnx(trace(module), module, {})).graph.node))
    assert counts[0] == counts[1] < 80


def test_both_files_tell_what_a_robot_needs(folder: Path) -> None:
    description = described(folder)
    control, fields = description["control"], description["observation"]["fields"]
    assert control["joint_names"] == list(FACTS.joint_names)
    assert control["kp_nm_per_rad"] == list(FACTS.kp_nm_per_rad)
    assert (control["control_dt_s"], control["decimation"]) == (0.02, 4)
    assert (fields["command"]["start"], fields["command"]["stop"]) == (54, 70)
    assert len(description["command"]) == 16
    assert all(each["low"] <= each["high"] and each["unit"] for each in description["command"])
    assert description["return_to_go"] is None

    model = onnx.load(folder / "policy.onnx")
    # ONNX Runtime 1.17, of January 2024, reads this IR version and no newer one.
    assert (model.ir_version, [each.version for each in model.opset_import]) == (9, [20])
    properties = {each.key: each.value for each in model.metadata_props}
    assert properties["joint_names"].split(",") == list(FACTS.joint_names)
    for name, values in (
        ("joint_stiffness", FACTS.kp_nm_per_rad),
        ("joint_damping", FACTS.kd_nms_per_rad),
        ("default_joint_pos", FACTS.default_joint_pos_rad),
        ("action_scale", [FACTS.action_scale_rad]),
    ):
        assert [float(each) for each in properties[name].split(",")] == list(values)
    whole = json.loads(properties["gaitforge"])
    assert whole.items() <= description.items()
    assert [each.name for each in model.graph.input] == description["inputs"]
    assert [each.name for each in model.graph.output] == description["outputs"]
    shapes = [each.type.tensor_type.shape.dim for each in model.graph.input[1:]]
    assert [[d.dim_value for d in dims] for dims in shapes] == [
        each["shape"] for each in description["state"]
    ]


def test_no_pickle_and_no_path_of_this_machine_is_in_the_files(folder: Path) -> None:
    for path in folder.iterdir():
        assert str(ROOT).encode() not in path.read_bytes()
        assert sys.prefix.encode() not in path.read_bytes()
    with zipfile.ZipFile(io.BytesIO((folder / "policy.pt2").read_bytes())) as archive:
        for name in archive.namelist():
            # A pickle starts with its protocol; torch.save wraps one in a zip.
            assert archive.read(name)[:2] not in (b"\x80\x02", b"\x80\x04", b"\x80\x05", b"PK"), (
                name
            )


def test_known_answers_are_met_and_wrong_ones_noticed(folder: Path, tmp_path: Path) -> None:
    assert OnnxPolicy(folder).check_known_answers() <= 1e-5
    description = described(folder)
    description["known_answers"]["action"][3][0][5] += 0.01
    (tmp_path / "policy.json").write_text(json.dumps(description))
    (tmp_path / "policy.onnx").write_bytes((folder / "policy.onnx").read_bytes())
    with pytest.raises(ValueError, match="differ from the known answers"):
        OnnxPolicy(tmp_path).check_known_answers()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "holds no policy.json": lambda folder: (folder / "policy.json").unlink(),
    "describes no policy of this program's format 1": lambda folder: (
        folder / "policy.json"
    ).write_text(json.dumps(described(folder) | {"format_version": 99})),
    "cannot be read as JSON": lambda folder: (folder / "policy.json").write_bytes(b"\xff{"),
    "is not the file that policy.json describes": lambda folder: (
        folder / "policy.onnx"
    ).write_bytes((folder / "policy.onnx").read_bytes()[::-1]),
    "export it with the format onnx": lambda folder: (folder / "policy.onnx").unlink(),
}


@pytest.mark.parametrize("message", DAMAGES)
def test_a_damaged_export_is_one_line(message: str, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    DAMAGES[message](tmp_path)
    with pytest.raises(ValueError, match=message) as caught:
        OnnxPolicy(tmp_path)
    assert "\n" not in str(caught.value)


def test_wrong_use_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="num_robots"):
        OnnxPolicy(folder, num_robots=0)
    with pytest.raises(ValueError, match="return_target"):
        OnnxPolicy(folder, return_target=float("inf"))
    with pytest.raises(ValueError, match=r"shape \(2, 70\)"):
        OnnxPolicy(folder, num_robots=2).act(Seen(np.zeros((3, 70)), np.zeros(3)))
    with pytest.raises(ValueError, match="unknown format 'tflite'; allowed: onnx, pt2"):
        PolicyExportOptions(("onnx", "tflite"))
    for formats in ((), ("pt2", "pt2")):
        with pytest.raises(ValueError, match="give each format once"):
            PolicyExportOptions(formats)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        PolicyExportOptions(("onnx",), 0)


def test_the_same_export_again_changes_nothing_and_another_is_refused(tmp_path: Path) -> None:
    dst = tmp_path / "out"
    dst.mkdir()
    first = export_small(dst, "mlp", options=PT2_ONLY)
    before = {path.name: (path.stat().st_ino, path.read_bytes()) for path in dst.iterdir()}
    again = export_small(dst, "mlp", options=PT2_ONLY)
    assert (first.already_there, again.already_there) == (False, True)
    assert again.sizes == first.sizes == {name: len(text) for name, (_, text) in before.items()}
    assert {p.name: (p.stat().st_ino, p.read_bytes()) for p in dst.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]

    with pytest.raises(ValueError, match="exists and holds something else"):
        export_small(dst, "history-mlp", options=PT2_ONLY)
    (dst / "policy.pt2").write_bytes(b"cut")
    (tmp_path / "file").write_text("years of work")
    for place in (dst, tmp_path / "file"):
        with pytest.raises(ValueError, match="holds something else"):
            export_small(place, "mlp", options=PT2_ONLY)
    with pytest.raises(ValueError, match="cannot write"):
        export_small(tmp_path / "file" / "out", "mlp", options=PT2_ONLY)
    assert (tmp_path / "file").read_text() == "years of work"


def test_a_policy_of_another_robot_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    policy, card = small_policy("mlp")
    fewer = replace(FACTS, joint_names=FACTS.joint_names[:-1])
    with pytest.raises(ValueError, match="moves 12 joints, but aliengo has 11"):
        export_policy(policy, card, fewer, tmp_path / "out")
    without = {name: each for name, each in FACTS.observation.items() if name != "command"}
    with pytest.raises(ValueError, match="another observation layout: command"):
        export_policy(policy, card, replace(FACTS, observation=without), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named_with_the_way_to_get_it(
    package: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=rf"{package}.*pip install -e '.\[onnx\]'"):
        export_small(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    assert export_small(tmp_path / "out", "mlp", options=PT2_ONLY).sizes.keys() == PT2_FILES
    if package == "onnxruntime":
        with pytest.raises(ValueError, match="pip install onnxruntime"):  # also without the clone
            OnnxPolicy(folder)


def test_the_runner_needs_no_torch(folder: Path) -> None:
    code = (
        "import sys; from gaitforge.learners.export.onnx_policy import OnnxPolicy; "
        "print(OnnxPolicy(sys.argv[1]).check_known_answers()); assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) <= 1e-5


class BenchRobot:
    """Stands still for some steps and keeps what it is sent."""

    def __init__(self, steps: int) -> None:
        self.left = steps
        self.sent: list[np.ndarray] = []
        self.command = np.zeros(16)

    def running(self) -> bool:
        """Whether there is another step."""
        self.left -= 1
        return self.left >= 0

    def read(self) -> tuple[np.ndarray, ...]:
        """Gravity, joint positions and velocities, angular velocity, command."""
        stance = np.array(FACTS.default_joint_pos_rad)
        return np.array([0.0, 0.0, -1.0]), stance, np.zeros(12), np.zeros(3), self.command

    def send(self, target: np.ndarray, kp: list[float], kd: list[float]) -> None:
        """Joint targets and gains."""
        assert (tuple(kp), tuple(kd)) == (FACTS.kp_nm_per_rad, FACTS.kd_nms_per_rad)
        self.sent.append(target)


def test_the_loop_of_the_documentation_runs_the_policy(folder: Path) -> None:
    text = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    code = text.split("```python\n")[1].split("```")[0]
    robot = BenchRobot(LONG)
    exec(compile(code, "docs/export.md", "exec"), {"folder": str(folder), "robot": robot})

    policy = LearnedPolicy(small_policy("fcnet")[0], num_robots=1)
    stance = np.array(FACTS.default_joint_pos_rad)
    action = np.zeros(12)
    for sent in robot.sent:
        parts = [[0, 0, -1], np.zeros(12), np.sin(stance), np.cos(stance), np.zeros(3), action]
        obs = np.concatenate([*parts, np.zeros(16)])[None].astype(np.float32)
        action = np.clip(policy.act(Seen(obs, np.zeros(1)))[0], -12, 12)
        np.testing.assert_allclose(sent, stance + FACTS.action_scale_rad * action, atol=1e-4)
    assert len(robot.sent) == LONG
