"""What this plug-in brings, by the names of its entry points; loads none of its work."""

from gaitforge.datasets.formats import FormatEntry
from gaitforge.pipeline.cli.parsing.entries import CommandEntry

_FORMAT = "gaitforge.plugins.mocapact.format"

FORMAT = FormatEntry(
    "MoCapAct's HDF5 of humanoid rollouts",
    "file.hdf5, or a folder of them",
    importer=f"{_FORMAT}.mocapact_reader:MocapactImporter",
    exporter=f"{_FORMAT}.mocapact_writer:MocapactExporter",
    needs=("h5py",),
    extra="hdf5",
)
COMMAND = CommandEntry(
    "motion tracking of the CMU humanoid (MoCapAct's task)",
    "gaitforge.plugins.mocapact.commands:humanoid_command",
    group="make data",
)
