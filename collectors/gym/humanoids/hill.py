"""Humanoid-Hill: run over irregular waves (Sferrazza et al. 2024, Section 5.2).

The terrain is that of github.com/carlosferrazza/BodyTransformer (reinforcement_learning/
IsaacGymEnvs/isaacgymenvs/tasks/humanoid_forces.py, class Terrain): squares of 8 m in cells of
0.1 m, each with 1 to 10 waves of 0.01 to 0.15 m along both axes. Deviations: drawn anew for every
episode, as a strip in which the start lies; an episode ends by the height above the ground.
"""

import mujoco
import numpy as np

from gaitforge.collectors.gym.humanoids.humanoid import Humanoid

SQUARE_M = 8.0
CELL_M = 0.1
SQUARES = (3, 12)
"""Across (y) and along (x); more than anyone runs in an episode. Beside the strip one falls."""
BEHIND_M = 4.0
"""Length of the strip behind the start, which is at the middle of its first square."""
MAX_HEIGHT_M = 0.15
WAVES = (1, 10)
AMPLITUDES_M = (0.01, 0.15)


class HumanoidHill(Humanoid):
    """The base task on a height field."""

    def __init__(self) -> None:
        super().__init__()
        shape = int(self.model.hfield_nrow[0]), int(self.model.hfield_ncol[0])
        self._heights_m = np.zeros(shape, np.float32)

    def add_world(self, spec: mujoco.MjSpec) -> None:
        """See `Humanoid.add_world`: the ground becomes a height field."""
        rows, columns = (round(count * SQUARE_M / CELL_M) for count in SQUARES)
        size = (columns * CELL_M / 2, rows * CELL_M / 2, 2 * MAX_HEIGHT_M, 1.0)
        flat = np.zeros(rows * columns)
        spec.add_hfield(name="hills", nrow=rows, ncol=columns, size=size, userdata=flat)
        floor = spec.geom("floor")
        floor.type = mujoco.mjtGeom.mjGEOM_HFIELD
        floor.hfieldname = "hills"
        floor.pos = (size[0] - BEHIND_M, 0, -MAX_HEIGHT_M)

    def draw_world(self) -> float:
        """See `Humanoid.draw_world`: waves; the height is the highest within 0.5 m."""
        cells = round(SQUARE_M / CELL_M)
        phase = np.arange(cells) * (2 * np.pi / cells)
        tiles = self._heights_m.reshape(SQUARES[0], cells, SQUARES[1], cells)
        for row, column in np.ndindex(SQUARES):
            waves = phase * self.np_random.integers(WAVES[0], WAVES[1] + 1)
            half_m = 0.5 * self.np_random.uniform(*AMPLITUDES_M)
            across = half_m * np.cos(waves)
            along = half_m * np.sin(waves)
            tiles[row, :, column] = across[:, None] + along
        self.model.hfield_data[:] = (self._heights_m / (2 * MAX_HEIGHT_M) + 0.5).ravel()
        row, column = self._cell(0.0, 0.0)
        return float(self._heights_m[row - 5 : row + 6, column - 5 : column + 6].max())

    def ground_m(self, x: float, y: float) -> float:
        """See `Humanoid.ground_m`."""
        return float(self._heights_m[self._cell(x, y)])

    def _cell(self, x: float, y: float) -> tuple[int, int]:
        rows, columns = self._heights_m.shape
        row = int(y / CELL_M + rows / 2)
        column = int((x + BEHIND_M) / CELL_M)
        return min(max(row, 0), rows - 1), min(max(column, 0), columns - 1)
