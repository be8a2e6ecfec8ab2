"""N-FGSM (de Jorge et al. 2022): AT with one step from strong noise, which is not projected."""

from dataclasses import dataclass

from torch import Tensor, nn

from rattle.attacks import PGD, Attack
from rattle.attacks.base import attack_mode
from rattle.inputs import check_batch, input_gradient, logits_of
from rattle.losses import ce
from rattle.objectives.at import AT
from rattle.objectives.base import ONE_STEP, Method, StepContext
from rattle.randomness import Randomness, streams
from rattle.settings import NonNegative, Positive
from rattle.threat import Threat


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyStep:
    """x' = clip(x~ + alpha epsilon sign(grad CE(f(x~), y))), x~ = clip(x + noise) drawn from k times the ball.

    x' stays in [0, 1] but leaves the ball, to at most (k + alpha) epsilon: it is for training, not for evaluation.
    """

    threat: Threat
    noise: float = 2.0  # k
    step: float = 1.0  # alpha

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None) -> Tensor:
        x, y = check_batch(x, y, soft=True)
        threat, epsilon = self.threat, self.threat.epsilon
        draws = streams(generator, len(x), x.device)
        start = threat.random_start(x, draws, self.noise * epsilon).requires_grad_()
        with attack_mode(model):
            gradient = input_gradient(ce(logits_of(model, start), y).sum(), start)
        return threat.ascend(start.detach(), gradient, self.step * epsilon).clamp(0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class NFGSM(AT):
    """CE(f(x'), y) + Taylor terms, x' of one noisy step."""

    title = "N-FGSM"
    unused = ONE_STEP
    noise: NonNegative = 2.0  # k, radius of the uniform noise, over epsilon
    step: Positive = 1.0  # alpha, length of the step, over epsilon

    def attack(self, pgd: PGD, context: StepContext) -> Attack:
        return NoisyStep(threat=pgd.threat, noise=self.noise, step=self.step)


METHOD = Method(
    objective=NFGSM(),
)
