"""What was measured of a method, image by image and seed by seed, and how two of them differ. No torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from rattle.evaluation.calibration import Calibration, calibration
from rattle.evaluation.classes import WorstClass, worst_class
from rattle.evaluation.results import StoredResult
from rattle.stats import (
    Interval,
    Summary,
    error_of_images,
    mcnemar,
    mean_interval,
    normal,
    seeds_interval,
    student,
    summarise,
    t_interval,
    welch,
    wilson,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One method under one attack: for each seed, a flag for each image, or its rate over draws of a random model."""

    seeds: tuple[int, ...]
    flags: tuple[tuple[float, ...], ...]  # [seeds][images]; distances, where the attack measures those
    protocol: str = ""  # how they were attacked; only equal ones are compared
    images: tuple[str, ...] = ()  # a checksum of each image, by which samples are paired
    labels: tuple[int, ...] = ()  # the class of each image
    confidence: tuple[tuple[float, ...], ...] = ()  # for each seed that of each image, or () where it is not known
    places: tuple[str, ...] = ()  # dataset and number of each image, where one of two samples has no checksums
    errors: tuple[float, ...] = ()  # of random models: each seed's standard error by draws, which images may share
    draws: int = 0  # of random models: fresh ones by which a rate was measured

    @property
    def error(self) -> float:
        """Standard error of the mean over seeds by draws; 0 where flags are not rates."""
        return math.hypot(*self.errors) / len(self.seeds)

    @property
    def accuracies(self) -> list[float]:
        return [sum(flags) / len(flags) for flags in self.flags]

    @property
    def seeds_text(self) -> str:
        return f"{len(self.seeds)} seed{'s' if len(self.seeds) > 1 else ''}"

    @property
    def summary(self) -> Summary:
        """Mean and std of the accuracies over seeds."""
        return summarise(self.accuracies)

    @property
    def interval(self) -> Interval:
        """95 % of the mean over seeds; of one seed over images: Wilson's for flags, Student's for distances.

        Seeds that agree on every image count as one: they show nothing about how seeds vary.
        """
        if len(set(self.flags)) > 1:
            return seeds_interval(self.flags, self.error)
        values = self.flags[0]
        if self.errors:
            return mean_interval(values, self.error)
        if set(values) <= {0, 1}:
            return wilson(int(sum(values)), len(values))
        return t_interval(values)

    @property
    def worst_classes(self) -> list[WorstClass]:
        """The worst class of each seed; none where classes have few images."""
        found = [worst_class(flags, self.labels) for flags in self.flags]
        return [worst for worst in found if worst]

    @property
    def calibrations(self) -> list[Calibration]:
        """Confidences against accuracies for each seed; none where one of the seeds has no confidences."""
        pairs = zip(self.confidence, self.flags, strict=False)
        found = [known for confidence, flags in pairs if (known := calibration(confidence, flags))]
        return found if len(found) == len(self.flags) else []

    @property
    def n(self) -> int:
        """Images."""
        return len(self.flags[0])

    def at(self, rows: Sequence[int]) -> "Sample":
        """The same of these images alone."""

        def chosen(values: Sequence[Any]) -> tuple[Any, ...]:
            return tuple(values[i] for i in rows) if values else ()

        which = {"images": chosen(self.images), "places": chosen(self.places), "labels": chosen(self.labels)}
        return replace(
            self, flags=tuple(map(chosen, self.flags)), confidence=tuple(map(chosen, self.confidence)), **which
        )


def sample_of(result: StoredResult, seed: int) -> Sample:
    """One seed's result."""
    return Sample(
        seeds=(seed,),
        flags=(result.flags,),
        protocol=result.protocol,
        images=result.images,
        labels=result.labels,
        confidence=(result.confidence,),
        places=result.places,
        errors=(result.error,) if result.draws else (),
        draws=result.draws,
    )


def join_seeds(samples: Sequence[Sample]) -> Sample:
    """All seeds of samples that were attacked alike on the same images."""
    every = {}
    for name in ("seeds", "flags", "confidence", "errors"):
        every[name] = tuple(chain.from_iterable(getattr(sample, name) for sample in samples))
    return replace(samples[0], **every)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One method less another, and how likely so large a difference is by chance."""

    mean: float
    interval: Interval  # 95 %
    p: float  # two-sided, not adjusted for being one of several
    test: str
    n: int  # seeds


def on_shared_images(a: Sample, b: Sample) -> tuple[Sample, Sample] | None:
    """Both on the images that both have, in one order; None if there are none.

    >>> first, second = (Sample(seeds=(0,), flags=((1, 0),), places=places) for places in (("p", "q"), ("q", "r")))
    >>> [sample.flags for sample in on_shared_images(first, second)]
    [((0,),), ((1,),)]
    """
    one, two = (a.images, b.images) if a.images and b.images else (a.places, b.places)
    if one == two:  # also where neither says
        return a, b
    found = {image: i for i, image in enumerate(two)}
    rows = [i for i, image in enumerate(one) if image in found]
    return (a.at(rows), b.at([found[one[i]] for i in rows])) if rows else None


def comparable(a: Sample, b: Sample) -> bool:
    """The same attack on the same number of images."""
    return a.protocol == b.protocol and {len(flags) for flags in a.flags} == {len(flags) for flags in b.flags}


def paired_test(a: Sample, b: Sample, seeds: Sequence[int]) -> tuple[list[list[float]], float, str]:
    """(differences a less b [seeds][images], two-sided p, name of the test) over seeds that both have.

    One seed: McNemar's mid-p, or Student's t over images where they have distances or rates instead of flags. Several:
    Student's t of the paired differences; where seeds agree more than their images do, the images decide
    (`error_of_images`), and seeds that agree on every image count as one. Errors by draws count in both: images may
    share them.
    """
    pairs = [(a.flags[a.seeds.index(seed)], b.flags[b.seeds.index(seed)]) for seed in seeds]
    if len(set(pairs)) == 1:
        pairs = pairs[:1]
    gaps = [[x - y for x, y in zip(*pair, strict=True)] for pair in pairs]
    if len(pairs) > 1:
        join_seeds = [math.fsum(gap) / len(gap) for gap in gaps]
        by_images = normal(math.fsum(join_seeds) / len(gaps), math.hypot(error_of_images(gaps), a.error, b.error))
        return gaps, max(student(join_seeds), by_images), "Student's t over seeds"
    first, second = pairs[0]
    if set(first) | set(second) <= {0, 1}:
        return gaps, mcnemar(first, second).p_mid, "McNemar's test over images"
    return gaps, student(gaps[0], math.hypot(a.error, b.error)), "Student's t over images"


def difference(a: Sample, b: Sample) -> Difference | None:
    """a less b by `paired_test` over the seeds that both have; None where there are none or they are not comparable.

    >>> one, two = (Sample(seeds=(0,), flags=(flags,)) for flags in ((1, 1, 1, 1, 0), (0, 0, 0, 1, 0)))
    >>> round(difference(one, two).mean, 2), difference(one, two).p
    (0.6, 0.125)
    """
    seeds = [seed for seed in a.seeds if seed in b.seeds]
    if not seeds or not comparable(a, b):
        return None
    gaps, p, test = paired_test(a, b, seeds)
    error = math.hypot(a.error, b.error)
    interval = seeds_interval(gaps, error) if len(gaps) > 1 else t_interval(gaps[0], error)
    mean = math.fsum(map(math.fsum, gaps)) / len(gaps) / a.n
    return Difference(mean=mean, interval=interval, p=p, test=test, n=len(gaps))


def two_sided_p(a: Sample, b: Sample) -> float | None:
    """How likely so large a difference is by chance; None where they are not comparable, or one seed meets several.

    The same seeds, or one seed each whatever it is: by `paired_test` (with one seed it speaks of these two networks,
    not of the methods). Other seeds: Welch's test, and the images where seeds agree more than these do.
    """
    if not comparable(a, b):
        return None
    if len(set(a.flags)) == len(set(b.flags)) == 1:
        a, b = (replace(each, seeds=(0,), flags=each.flags[:1], errors=each.errors[:1]) for each in (a, b))
    if sorted(a.seeds) == sorted(b.seeds) and len(set(a.seeds)) == len(a.seeds):
        return paired_test(a, b, a.seeds)[1]
    if min(len(a.seeds), len(b.seeds)) == 1:
        return None
    gap = math.fsum(a.accuracies) / len(a.seeds) - math.fsum(b.accuracies) / len(b.seeds)
    errors = [math.hypot(error_of_images(s.flags), s.error) for s in (a, b)]
    return max(welch(a.accuracies, b.accuracies), normal(gap, math.hypot(*errors)))
