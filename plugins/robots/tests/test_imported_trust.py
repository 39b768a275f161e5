"""TorchScript experts: which may run, and which memory they keep."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.collectors.experts.expert import load_expert
from gaitforge.collectors.robots.robot import N_JOINTS
from gaitforge.pipeline.cli.main import main
from gaitforge.plugins.robots.imported_experts.importing import CARD, import_expert, open_network
from gaitforge.plugins.robots.imported_experts.networks import trust_program, trusted_list
from gaitforge.plugins.robots.tests.test_imported import VALUES
from tests.collectors.imported_files import TERMS, WIDTH

PRECIOUS = b"p" * 64


@pytest.fixture(autouse=True)
def own_list(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of trusted programs of this test only."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))


class Overwrites(torch.nn.Module):
    """Overwrites the file `victim` of the working directory in every step."""

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        mapped = torch.from_file("victim", shared=True, size=64, dtype=torch.uint8)
        mapped.fill_(33)
        # Without a use of the file torch leaves it out.
        return observation[:, :12] * 0.0 + mapped[:1].float().sum() * 0.0


@pytest.fixture
def victim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that `Overwrites` overwrites, beside `evil.pt` and a layout that fits it."""
    monkeypatch.chdir(tmp_path)
    Path("victim").write_bytes(PRECIOUS)
    torch.jit.script(Overwrites()).save("evil.pt")
    Path("layout.yaml").write_text(json.dumps(VALUES | {"terms": list(TERMS), "robot": "go1"}))
    return tmp_path / "victim"


IMPORT = ["expert", "import", "evil.pt", "--name", "evil", "--layout", "layout.yaml",
          "--gains", "robot"]  # fmt: skip


def test_a_torchscript_expert_runs_only_at_the_users_word(
    victim: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not at the import, not in a received folder, not after a change of the trusted file."""
    assert main(IMPORT) == 2
    assert "give --trust" in capsys.readouterr().err
    assert victim.read_bytes() == PRECIOUS
    assert not Path("evil").exists()
    assert main([*IMPORT, "--trust"]) == 0
    assert victim.read_bytes() != PRECIOUS

    # The same folder, at a user's who has not trusted it.
    victim.write_bytes(PRECIOUS)
    listed = trusted_list().read_bytes()
    trusted_list().unlink()
    uses = [
        ["expert", "check", "evil"],
        ["evaluate", "evil", "--skill", "run", "--terrain", "flat"],
        ["collect", "s.zarr", "--expert", "evil", "--skill", "run", "--terrain", "flat",
         "--set", "grid.parts=1", "--set", "grid.episodes_per_part=1"],
        ["expert", "film", "--expert", "evil", "--skill", "run", "--out", "film"],
    ]  # fmt: skip
    for words in uses:
        assert main(words) == 2, words
        assert "`gaitforge expert trust " in capsys.readouterr().err, words
    assert victim.read_bytes() == PRECIOUS

    # A list without a last line's end keeps its programs when another one is added.
    trusted_list().write_bytes(listed.strip())
    trust_program(b"another program", "other.pt")
    load_expert("evil")
    victim.write_bytes(PRECIOUS)
    with Path("evil/policy.pt").open("ab") as stream:
        stream.write(b"\0")
    with pytest.raises(ValueError, match="you have not allowed it to run"):
        load_expert("evil")
    assert victim.read_bytes() == PRECIOUS
    assert main(["expert", "trust", "evil"]) == 0
    assert victim.read_bytes() == PRECIOUS  # it is allowed to run, but is not run


@pytest.mark.parametrize("policy", ["../evil.pt", "{absolute}", "policy.py", None, ["policy.pt"]])
def test_a_card_names_no_file_outside_its_folder(policy: object, victim: Path) -> None:
    main([*IMPORT, "--trust"])
    victim.write_bytes(PRECIOUS)
    card = json.loads(Path("evil", CARD).read_text())
    name = str(Path("evil.pt").absolute()) if policy == "{absolute}" else policy
    Path("evil", CARD).write_text(json.dumps(card | {"policy": name}))
    with pytest.raises(ValueError, match=r"its policy .* is none of policy\.onnx, policy\.pt"):
        load_expert("evil")
    assert main(["expert", "trust", "evil"]) == 2
    assert victim.read_bytes() == PRECIOUS


class InPlace(torch.nn.Module):
    """Half of the last output is added; written into a buffer, as rsl-rl does."""

    memory: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("memory", torch.full((1, 12), 0.25))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.memory[:] = self.memory * 0.5 + x[:, :12]
        return self.memory


class Assigned(InPlace):
    """The same, by an assignment to the buffer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.memory = self.memory * 0.5 + x[:, :12]
        return self.memory


class Plain(torch.nn.Module):
    """The same in a tensor that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = torch.full((1, 12), 0.25)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.memory = self.memory * 0.5 + x[:, :12]
        return self.memory


class Inner(torch.nn.Module):
    """The same in a module's module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Assigned()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class Counting(torch.nn.Module):
    """A count of the steps; from the tenth on, which no trial reaches, also a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.last = torch.zeros(1, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        if self.steps > 9:
            self.last = x[:, :12]
        return self.last + self.steps


def _halving(inputs: np.ndarray) -> np.ndarray:
    outputs = []
    memory = np.full(N_JOINTS, 0.25, np.float32)
    for row in inputs:
        memory = memory * np.float32(0.5) + row[:N_JOINTS]
        outputs.append(memory)
    return np.array(outputs)


def _counting(inputs: np.ndarray) -> np.ndarray:
    late = np.arange(1, len(inputs) + 1)[:, None] > 9
    return np.where(late, inputs[:, :N_JOINTS], 0.0) + np.arange(1, len(inputs) + 1)[:, None]


Law = Callable[[np.ndarray], np.ndarray]
KINDS: dict[str, tuple[type[torch.nn.Module], Law]] = {
    "in place": (InPlace, _halving),
    "assigned": (Assigned, _halving),
    "no buffer": (Plain, _halving),
    "inner": (Inner, _halving),
    "number": (Counting, _counting),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10)
@given(seed=st.integers(0, 2**32 - 1), robots=st.integers(1, 3), reset_at=st.integers(0, 13))
def test_every_robot_has_its_own_memory_and_a_reset_forgets_it(
    kind: str, seed: int, robots: int, reset_at: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    module, law = KINDS[kind]
    file = tmp_path_factory.mktemp("module") / "policy.pt"
    torch.jit.script(module()).save(str(file))
    trust_program(file.read_bytes(), "of this test")
    network = open_network(file, WIDTH)
    generator = np.random.default_rng(seed)
    inputs = generator.normal(size=(14, robots, WIDTH)).astype(np.float32)
    state = [np.repeat(part[None], robots, axis=0) for part in network.state]
    assert state
    outputs = []
    for step, values in enumerate(inputs):
        if step == reset_at:  # the last robot's episode ends
            for part, start in zip(state, network.state, strict=True):
                part[-1] = start
        output, state = network.step(values, state)
        outputs.append(output)
    for robot in range(robots):
        seen = inputs[:, robot]
        expected = law(seen)
        if robot == robots - 1:
            expected = np.concatenate(
                [law(seen[:reset_at]).reshape(-1, N_JOINTS), law(seen[reset_at:])]
            )
        assert np.allclose([row[robot] for row in outputs], expected, atol=1e-5)


class Listed(torch.nn.Module):
    """A memory in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.past = [torch.zeros(1, 12)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.past[0] = self.past[0] + x[:, :12]
        return self.past[0]


class Growing(torch.nn.Module):
    """A memory that becomes longer."""

    def __init__(self) -> None:
        super().__init__()
        self.past = torch.zeros(1, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.past = torch.cat([self.past, x[:, :12]])
        return self.past[-1:]


class Late(torch.nn.Module):
    """A tensor that is written in place only for large inputs, which no trial has."""

    memory: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("memory", torch.zeros(1, 12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.abs().max()) > 100.0:
            self.memory.add_(1.0)
        return x[:, :12] + self.memory


@pytest.mark.parametrize("module", [Listed, Growing, Late])
def test_a_memory_that_cannot_be_set_back_is_refused(
    module: type[torch.nn.Module], tmp_path: Path
) -> None:
    torch.jit.script(module()).save(str(tmp_path / "policy.pt"))
    trust_program((tmp_path / "policy.pt").read_bytes(), "of this test")
    with pytest.raises(ValueError, match=r"policy\.pt (keeps a memory in 'past' that cannot be set"
                       "|changes 'memory' only after some steps)"):  # fmt: skip
        open_network(tmp_path / "policy.pt", WIDTH).step(np.full((1, WIDTH), 200, np.float32), [])


def test_the_python_import_asks_too(victim: Path) -> None:
    with pytest.raises(ValueError, match="you have not allowed it to run"):
        import_expert(Path("evil.pt"), Path("evil"), "go1", Path("layout.yaml"), gains="robot")
    assert victim.read_bytes() == PRECIOUS
