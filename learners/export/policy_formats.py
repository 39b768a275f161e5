"""Forms of a policy's files, and the runtimes that run such files in the simulator.

    [project.entry-points."gaitforge.policy_formats"]
    c = "gaitforge.plugins.robot_runtime.entries:C"

    [project.entry-points."gaitforge.policy_runtimes"]
    c = "gaitforge.plugins.robot_runtime.entries:C_RUNTIME"

`gaitforge export --formats c` and `gaitforge evaluate --runtime c` know plug-ins' entries by name.
The ONNX model and the `torch.export` program are the product's own formats. A file of an export
names none of them: which one runs is what the user's command line says.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from gaitforge.common.errors import names_allowed
from gaitforge.common.extensions import Registered

_HERE = "gaitforge.learners.export"


@dataclass(frozen=True)
class PolicyFormat:
    """A form of a policy's files.

    Attributes:
        summary: what it is, in a few words.
        writer: "module:function", which takes a `PolicyExport` and its options and returns
            `WrittenFiles`; ValueError, in one line, for a policy that the format cannot hold.
        options: "module:Class" of its options, a frozen dataclass whose fields have defaults;
            empty for none.
        of_runtime: whether it is the files that another project's program for robots reads, which
            `--for NAME` chooses, beside `--formats NAME`.
    """

    summary: str
    writer: str
    options: str = ""
    of_runtime: bool = False

    def new_options(self) -> Any:
        """Its options with their defaults; None for none."""
        return None if not self.options else _loaded(self.options)()

    def write(self, export: Any, options: Any) -> Any:
        """The files of a policy, see `writer`."""
        return _loaded(self.writer)(export, options)


@dataclass(frozen=True)
class PolicyRuntime:
    """What runs an export's files in the loop of N robots.

    Attributes:
        summary: what it is, in a few words.
        policy: "module:Class" with the arguments and the methods of `OnnxPolicy`: `reset`, `act`,
            `parameters`, `description`.
    """

    summary: str
    policy: str

    def open(self, *arguments: Any) -> Any:
        """The policy of a folder; arguments as `OnnxPolicy`."""
        return _loaded(self.policy)(*arguments)


POLICY_FORMATS = Registered(
    "policy_format",
    PolicyFormat,
    {
        "onnx": PolicyFormat("an ONNX model", f"{_HERE}.export:write_onnx"),
        "pt2": PolicyFormat("a torch.export program", f"{_HERE}.export:write_pt2"),
    },
)
DEFAULT_FORMATS = ("onnx", "pt2")
DEFAULT_RUNTIME = "onnx"
POLICY_RUNTIMES = Registered(
    "policy_runtime",
    PolicyRuntime,
    {DEFAULT_RUNTIME: PolicyRuntime("ONNX Runtime", f"{_HERE}.onnx_policy:OnnxPolicy")},
)


def policy_format(name: str) -> PolicyFormat:
    """A format by name; ValueError, with the names that there are, for none."""
    if name not in POLICY_FORMATS:
        raise ValueError(f"unknown format {name!r}; {names_allowed(name, POLICY_FORMATS)}")
    return POLICY_FORMATS[name]


def policy_runtime(name: str) -> PolicyRuntime:
    """A runtime by name; ValueError, with the names that there are, for none."""
    if name not in POLICY_RUNTIMES:
        raise ValueError(f"unknown runtime {name!r}; {names_allowed(name, POLICY_RUNTIMES)}")
    return POLICY_RUNTIMES[name]


def _loaded(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
