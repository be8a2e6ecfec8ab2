"""Readings of the Taylor terms that only studies use: importing this registers them as `objective.taylor.mode`."""

from rattle.objectives.readings import register_reading
from reproduction.readings.curvature import HeadNoise, Trace
from reproduction.readings.variants import ExactPairs, HeadDerivative, Mixture, ReleasedTargets, SampledPairs

register_reading("trace", Trace())
register_reading("head-noise", HeadNoise())
register_reading("head-derivative", HeadDerivative())
register_reading("mixture", Mixture())
register_reading("exact-pairs", ExactPairs())
register_reading("sampled-pairs", SampledPairs())
register_reading("released-targets", ReleasedTargets())
