"""AT with early stopping (Rice et al. 2020): in its settings and stopped by held-out images, as every run here."""

from rattle.objectives import at

METHOD = at.METHOD
