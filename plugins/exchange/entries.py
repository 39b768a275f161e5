"""What this plug-in brings, by the names of its entry points; loads none of its work."""

from gaitforge.datasets.formats import FormatEntry
from gaitforge.pipeline.cli.parsing.entries import CommandEntry
from gaitforge.pipeline.report.added_pages import CardPage

_HERE = "gaitforge.plugins.exchange"

LEROBOT = FormatEntry(
    "LeRobot v3 (Parquet)",
    "folder",
    importer=f"{_HERE}.lerobot.lerobot_reader:LerobotImporter",
    exporter=f"{_HERE}.lerobot.lerobot_writer:LerobotExporter",
)
MINARI = FormatEntry(
    "Minari datasets, HDF5 or Arrow, through the minari library",
    "folder, or the id of a local dataset",
    importer=f"{_HERE}.minari.minari_reader:MinariImporter",
    exporter=f"{_HERE}.minari.minari_writer:MinariExporter",
    needs=("minari", "gymnasium"),
    extra="minari",
)
ROBOMIMIC = FormatEntry(
    "robomimic's HDF5, which Isaac Lab's recorder writes too",
    "file.hdf5",
    importer=f"{_HERE}.robomimic.robomimic_reader:RobomimicImporter",
    exporter=f"{_HERE}.robomimic.robomimic_writer:RobomimicExporter",
    needs=("h5py",),
    extra="hdf5",
)
PUBLISH = CommandEntry(
    "push a store with its card to the Hugging Face Hub, in one commit",
    f"{_HERE}.commands:publish",
    group="exchange with other projects",
)
GET = CommandEntry(
    "copy selected episodes of a store on a server into a local store",
    f"{_HERE}.commands:get",
    group="exchange with other projects",
)
RECORD = CommandEntry(
    "step an environment of mjlab, Gymnasium or your own with a policy, and record it",
    f"{_HERE}.commands:record",
    group="make data",
)
MANIFEST = CommandEntry(
    "write the list of files by which a store is read from a web server",
    f"{_HERE}.commands:manifest",
    group="exchange with other projects",
)
CROISSANT = CardPage(
    "croissant.json", "Croissant (for machines)", f"{_HERE}.croissant:croissant_text"
)
