"""Plain single-device networks: the codec, the latent operator, and the simulator they make."""

from ups.models.codec import Codec, CodecConfig
from ups.models.conditions import Condition
from ups.models.operator import CORES, SIZES, LatentOperator, OperatorConfig
from ups.models.simulator import Simulator, SimulatorConfig, build

__all__ = [
    "CORES",
    "SIZES",
    "Codec",
    "CodecConfig",
    "Condition",
    "LatentOperator",
    "OperatorConfig",
    "Simulator",
    "SimulatorConfig",
    "build",
]
