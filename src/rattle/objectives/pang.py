"""TRADES in the settings of the bag of tricks (Pang et al. 2021): a short run whose rate falls just before its end."""

from dataclasses import replace

from rattle.objectives import trades

METHOD = replace(
    trades.METHOD,
    length=110 / 200,
    drops=(100 / 110, 105 / 110),
)
