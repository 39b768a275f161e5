"""What this plug-in brings, by the names of its entry points; loads none of its work."""

from gaitforge.datasets.formats import FormatEntry
from gaitforge.flows.tasks.expert_trainers import ExpertTrainer
from gaitforge.pipeline.cli.parsing.entries import CommandEntry

_HERE = "gaitforge.plugins.gym"

FORMAT = FormatEntry(
    "D4RL's flat HDF5, v0 to v2",
    "file.hdf5",
    importer=f"{_HERE}.d4rl.d4rl_reader:D4rlImporter",
    exporter=f"{_HERE}.d4rl.d4rl_writer:D4rlExporter",
    needs=("h5py",),
    extra="hdf5",
)
FCNET = FormatEntry(
    "FCNet's three memory maps, of quadrupeds and (import only) of D4RL's tasks",
    "folder of src_*.dat, tgt_*.dat, meta_*.dat",
    importer=f"{_HERE}.fcnet.fcnet_reader:FcnetImporter",
    exporter=f"{_HERE}.fcnet.fcnet_writer:FcnetExporter",
)
COMMAND = CommandEntry(
    "Gymnasium's MuJoCo and Adroit tasks: collect D4RL-style data",
    f"{_HERE}.commands:gym_command",
    group="make data",
)
TRAINER = ExpertTrainer(
    "--env",
    "a Gymnasium task instead of a robot, see gym collect",
    "TASK",
    command=f"{_HERE}.commands:train_expert",
    examples=(
        "gaitforge expert train --env Hopper-v5 --out runs/hopper",
        "gaitforge expert train --env Humanoid-Mod-v0 --model bot --out runs/humanoid "
        "--set model_overrides.masking=mix",
    ),
    network_settings=f"{_HERE}.training.ppo:GymPPOConfig",
    network_training=f"{_HERE}.expert_training:run_gym_ppo",
)
