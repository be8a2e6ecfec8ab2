"""Pictures of landscapes: shared scales, both file kinds, the same bytes each time, and no crash on diverged models."""

from pathlib import Path

import numpy as np
import pytest

from rattle.analysis import plots
from rattle.errors import RattleError
from rattle.runs.arrays import InputSurface, WeightSurface

GRID = np.linspace(-1, 1, 5)


def bowl(steepness: float, images: int = 2, channels: int = 1) -> InputSurface:
    a, b = np.meshgrid(GRID, GRID, indexing="ij")
    loss = np.stack([steepness * (a**2 + b**2)] * images)
    x = np.zeros((images, channels, 8, 8))
    return InputSurface(a=GRID, b=GRID, loss=loss, correct=loss < 1, x=x, y=np.arange(images))


def parabola(steepness: float, *, dimensions: int, attacked: bool = True) -> WeightSurface:
    b = GRID if dimensions == 2 else np.zeros(1)
    clean = steepness * (GRID[:, None] ** 2 + b[None, :] ** 2) + 0.1
    return WeightSurface(a=GRID, b=b, clean=clean, adversarial=2 * clean if attacked else np.full_like(clean, np.nan))


def test_every_panel_has_the_same_height_scale() -> None:
    figure = plots.input_surfaces({"flat": bowl(0.5), "steep": bowl(4.0)})
    limits = [axes.get_zlim() for axes in figure.axes if hasattr(axes, "get_zlim")]
    assert len(limits) == 4
    assert set(limits) == {limits[0]}
    assert limits[0][1] >= 8.0


def test_a_picture_is_written_as_png_and_svg_and_twice_the_same(tmp_path: Path) -> None:
    curves = {"flat": parabola(0.5, dimensions=1), "steep": parabola(4.0, dimensions=1, attacked=False)}
    first, second = (
        plots.save_figure(plots.weight_curves(curves), tmp_path / n / "fig. 2", dpi=50) for n in ("a", "b")
    )
    assert [path.name for path in first] == ["fig. 2.png", "fig. 2.svg"]
    assert first[0].read_bytes().startswith(b"\x89PNG")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_weight_surfaces_have_a_row_for_each_model_and_a_column_for_each_loss() -> None:
    both = plots.weight_surfaces({"flat": parabola(0.5, dimensions=2), "steep": parabola(4.0, dimensions=2)})
    clean = plots.weight_surfaces({"flat": parabola(0.5, dimensions=2, attacked=False)})
    assert (len(both.axes), len(clean.axes)) == (2 + 4 + 1, 1 + 1 + 1)  # headings, surfaces and the colour bar


def test_a_surface_with_gaps_and_colour_images_is_still_drawn(tmp_path: Path) -> None:
    surface = bowl(1.0, images=1, channels=3)
    surface.loss[0, 0, 0], surface.loss[0, 1, 1] = np.nan, np.inf
    figure = plots.input_surfaces({"<b>$": surface})
    (axes,) = (axes for axes in figure.axes if hasattr(axes, "get_zlim"))
    assert np.isfinite(axes.get_zlim()).all()
    assert [text.get_text() for text in axes.texts] == ["<b>$"]
    assert all(path.stat().st_size > 1000 for path in plots.save_figure(figure, tmp_path / "gaps", dpi=40))


def test_what_cannot_be_compared_is_refused_in_words() -> None:
    with pytest.raises(RattleError, match="no landscape to draw"):
        plots.weight_curves({})
    other = WeightSurface(a=2 * GRID, b=np.zeros(1), clean=np.ones((5, 1)), adversarial=np.ones((5, 1)))
    with pytest.raises(RattleError, match="share their grid"):
        plots.weight_curves({"a": parabola(1.0, dimensions=1), "b": other})
    diverged = bowl(float("nan"))
    with pytest.raises(RattleError, match="diverged"):
        plots.input_surfaces({"a": diverged})
