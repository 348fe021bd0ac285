"""The equations, by the names they have everywhere. A new one is one file and one line in BUILT_IN."""

from collections.abc import Iterator, Mapping

from ups.physics.compressible import Compressible1D, Compressible2D, Compressible3D
from ups.physics.dispersive import KortewegDeVries1D, KuramotoSivashinsky1D
from ups.physics.elliptic import Darcy2D, Poisson2D
from ups.physics.incompressible import Incompressible2D
from ups.physics.reaction import DiffSorp1D, ReacDiff1D, ReacDiff2D
from ups.physics.shallow import ShallowWater2D
from ups.physics.solver import Equation
from ups.physics.transport import Advection1D, Burgers1D
from ups.plugins import Table
from ups.types import TaskSpec

BUILT_IN: dict[str, type[Equation]] = {
    "advection1d": Advection1D,
    "burgers1d": Burgers1D,
    "reacdiff1d": ReacDiff1D,
    "diffsorp1d": DiffSorp1D,
    "cfd1d": Compressible1D,
    "darcy2d": Darcy2D,
    "poisson2d": Poisson2D,
    "reacdiff2d": ReacDiff2D,
    "swe2d": ShallowWater2D,
    "cfd2d": Compressible2D,
    "cfd3d": Compressible3D,
    "nsincom2d": Incompressible2D,
    "ks1d": KuramotoSivashinsky1D,
    "kdv1d": KortewegDeVries1D,
}

EQUATIONS: Table[type[Equation]] = Table("equations", BUILT_IN)


class _Tasks(Mapping[str, TaskSpec]):
    """What is known of the task of each equation."""

    def __getitem__(self, name: str) -> TaskSpec:
        return EQUATIONS[name].spec()

    def __iter__(self) -> Iterator[str]:
        return iter(EQUATIONS)

    def __len__(self) -> int:
        return len(EQUATIONS)


TASKS: Mapping[str, TaskSpec] = _Tasks()
