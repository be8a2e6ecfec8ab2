"""N-FGSM (de Jorge et al. 2022): AT with one step from strong noise, which is not projected."""

from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from rattle.attacks import PGD
from rattle.attacks.base import attack_mode
from rattle.inputs import check_batch, input_gradient, logits_of
from rattle.losses import ce
from rattle.objectives.at import AT
from rattle.objectives.base import ONE_STEP, InnerAttack, Method, StepContext
from rattle.randomness import Randomness, streams
from rattle.settings import NonNegative, Positive
from rattle.threat import Threat


@dataclass(frozen=True, slots=True, kw_only=True)
class NFGSM(AT):
    """CE(f(x'), y) + Taylor terms, x' of one noisy step."""

    title = "N-FGSM"
    unused = ONE_STEP
    noise: NonNegative = 2.0  # k, radius of the uniform noise, over epsilon
    step: Positive = 1.0  # alpha, length of the step, over epsilon

    def attack(self, pgd: PGD, context: StepContext) -> InnerAttack:
        return partial(self.noisy_step, pgd.threat)

    def noisy_step(
        self, threat: Threat, model: nn.Module, x: Tensor, y: Tensor, *, generator: Randomness = None
    ) -> Tensor:
        """x' = clip(x~ + alpha epsilon sign(grad CE(f(x~), y))), x~ = clip(x + noise) drawn from k times the ball.

        x' stays in [0, 1] but leaves the ball, to at most (k + alpha) epsilon: it is for training, not for evaluation.
        """
        x, y = check_batch(x, y, soft=True)
        start = threat.random_start(
            x, streams(generator, len(x), x.device), self.noise * threat.epsilon
        ).requires_grad_()
        with attack_mode(model):
            gradient = input_gradient(ce(logits_of(model, start), y).sum(), start)
        return threat.ascend(start.detach(), gradient, self.step * threat.epsilon).clamp(0, 1)


METHOD = Method(
    objective=NFGSM(),
)
