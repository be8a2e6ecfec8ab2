"""AT with early stopping (Rice et al. 2020): in its settings and stopped by held-out images, as every run here."""

from dataclasses import replace

from rattle.objectives import at

METHOD = replace(
    at.METHOD, name="rice", summary="AT, stopped before it overfits", group="rows", paper="Rice et al. 2020"
)
