"""How landscapes and flatness numbers are computed. Imports no torch."""

from dataclasses import dataclass
from typing import Annotated

from rattle.errors import RattleError
from rattle.settings import Bound, Count, Positive, check_settings

SIGMAS = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)  # of weight noise, at which remainders are measured
AxisPoints = Annotated[int, Bound(least=3, most=10**4)]  # of an axis, an odd number, so that 0 is one of them


@dataclass(frozen=True, slots=True, kw_only=True)
class LandscapeConfig:
    """Images, grids and attack of the landscapes and flatness numbers of a run."""

    images: Count = 3  # images whose input space is drawn: the first of each class
    points: AxisPoints = 25  # of each axis in input space
    radius: Positive = 2.0  # of the input plane, in units of the threat's epsilon
    weight_images: Count = 128  # test images that the weight-space loss and the flatness numbers are means over
    line_points: AxisPoints = 25  # along the one direction in weight space
    surface_points: AxisPoints = 15  # along each of the two directions
    weight_radius: Positive = 1.0  # of the weight landscapes, in lengths of the filters themselves
    attack_steps: Count = 5  # of the attack behind the adversarial loss in weight space
    surface_attacked: bool = True  # adversarial loss over two directions, the slowest part
    iterations: Count = 50  # of the power iterations
    draws: Annotated[int, Bound(least=2)] = 20  # of the weight noise
    seed: int = 0

    def __post_init__(self) -> None:
        check_settings(self, "")
        for points in (self.points, self.line_points, self.surface_points):
            if points % 2 == 0:
                raise RattleError(f"landscape points must be odd, so that 0 is one of them, got {points}")


QUICK = LandscapeConfig(
    weight_images=64, line_points=15, surface_points=11, surface_attacked=False, iterations=20, draws=8
)
