"""The standard question in one call: how robust is this model on this dataset?"""

from typing import Any

from torch import nn

from rattle.data.dataset import check_count, choose_images
from rattle.data.registry import Data
from rattle.errors import RattleError
from rattle.evaluation.evaluate import evaluate
from rattle.evaluation.inputs import Attacks
from rattle.evaluation.results import Evaluation
from rattle.inputs import AnyArray, Given, as_tensors, collect
from rattle.threat import Norm


def benchmark(
    model: nn.Module,  # returns logits for images in [0, 1]; normalisation is a part of the model
    data: str
    | Given
    | tuple[AnyArray, AnyArray] = "cifar10",  # a dataset's name, FILE.npz, a folder, (x, y), a Dataset ...
    *,
    attacks: Attacks = "autoattack",
    norm: Norm = "linf",
    epsilon: float = 8 / 255,
    n: int | None = None,  # a sample of n test images with classes in proportion; of (x, y) the first n; all when None
    first: bool = False,  # take the first n test images of a dataset too, as the reference does
    root: str | None = None,  # where datasets are; RATTLE_DATA, or ./data, when None
    **settings: Any,  # of `evaluate`: batch_size, seed, device, out, console ...
) -> Evaluation:
    """Evaluate a model on a dataset's test images; warns of what makes the numbers unreliable.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    >>> result = benchmark(model, "digits", attacks="fgsm", epsilon=0.1, n=20)
    >>> result.n, list(result.attacks)
    (20, ['fgsm'])
    """
    check_count(n)
    if isinstance(data, str):
        test = Data(name=data, root=root).source().test
        shuffled = settings.get("within") is not None or settings.get("minutes") is not None
        index = choose_images(test.y, n, first=first, shuffled=shuffled)
        images = test.subset(index)
        x, y = images.x, images.y
        settings.setdefault("index", index)
        settings["metadata"] = {"data": data, **(settings.get("metadata") or {})}
    elif isinstance(data, tuple):
        if len(data) != 2:
            raise RattleError(f"data as a tuple is (images, labels), got {len(data)} entries")
        x, y = (value[:n] for value in as_tensors(model, *data))
    else:
        x, y = collect(data, n)  # type: ignore[arg-type]
    return evaluate(model, x, y, attacks, norm=norm, epsilon=epsilon, **settings)
