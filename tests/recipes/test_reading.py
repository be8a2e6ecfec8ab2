"""Limits of what is read as YAML and JSON: refused in a sentence, at once, before anything is built of it."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rattle.cli.main import main
from rattle.errors import RattleError
from rattle.recipes.catalog import get_recipe, resolve
from rattle.recipes.reading import DEEPEST, LARGEST_TEXT, parse_json
from rattle.recipes.recipe import Recipe
from rattle.runs.io import read_json, read_jsonl
from support.command import Command

LAUGHS = "a0: &a0 [x, x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
BAD_YAML = {
    "it has the alias *a0": LAUGHS,
    "nested more than 40 levels deep": "[" * 100_000,
    "levels deep": "model: " + "{a: " * 100 + "}" * 100,
    "it has the alias *a:": "a: &a [*a]",
    "too long": "#" * (LARGEST_TEXT + 1),
    "the key 'model' stands there twice": "model: cnn\nepochs: 3\nmodel: vgg16",
    "the key 'threat' stands there twice": "attack: {threat: {epsilon: 0.1}, steps: 3, threat: {epsilon: 0.2}}",
    "invalid literal for int": "epochs: !!int x",
    "could not determine a constructor": "!!python/object/apply:os.abort []",
    "month must be in 1..12": "epochs: 2020-99-99",
    "(4300 digits)": "epochs: " + "9" * 5000,
    "epochs must be int, got 9": "epochs: " + "9" * 100,
    "must be int, got 1e+30": "epochs: 1.0e+30",
    "drops must be a list such as [0.5], got 0.5": "schedule: {kind: Piecewise, drops: 0.5}",
    "unknown schedule.kind": "schedule: {kind: [Piecewise]}",
    "unknown setting '1'": "1: 2",
    "Recipe: expected settings, got None": "",
    "characters are not allowed": "model: \x07",
}


@pytest.fixture(autouse=True)
def _at_once() -> Iterator[None]:
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("sentence", BAD_YAML)
def test_a_recipe_beyond_the_limits_is_refused_in_a_sentence(sentence: str, tmp_path: Path, command: Command) -> None:
    (tmp_path / "recipe.yaml").write_text(BAD_YAML[sentence])
    said = command.refused("train", str(tmp_path / "recipe.yaml"), "--out", str(tmp_path / "run"))
    assert sentence in said or "is too long to be read" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", ["epochs: 3 # é".encode("latin-1"), "epochs: 3".encode("utf-16"), b"\xff\xfe\xff"])
def test_another_encoding_is_refused_in_a_sentence(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_bytes(content)
    assert main(["train", str(tmp_path / "recipe.yaml")]) == 2


def test_what_honest_people_write_is_read(tmp_path: Path) -> None:
    text = get_recipe("digits-linf-cnn-trades-awp-2nd").to_yaml()
    assert Recipe.from_yaml(text).to_yaml() == text
    (tmp_path / "recipe.yaml").write_text("\ufeff" + text, encoding="utf-8")  # as Windows' editor saves it
    assert resolve(str(tmp_path)) == resolve(str(tmp_path / "recipe.yaml")) == Recipe.from_yaml(text)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[" * 100_000, "levels deep"),
        ('{"a": ' * 60 + "1" + "}" * 60, "levels deep"),
        ("9" * 100, "a number of 100 digits"),
        ("{", "not valid JSON"),
        ("\x00", "not valid JSON"),
    ],
)
def test_json_beyond_the_limits_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(RattleError, match=sentence):
        parse_json(text)
    notes: list[str] = []
    (tmp_path / "a.json").write_text(f'{{"epoch": 1, "b": {text}}}')
    assert read_json(tmp_path / "a.json", notes) is None
    assert read_jsonl(tmp_path / "a.json", notes) == []
    assert len(notes) == 2


def test_half_a_character_is_replaced() -> None:
    assert parse_json(r'{"a": "x\ud800", "b": "\ud83d\ude00"}') == {"a": "x?", "b": "\U0001f600"}


def test_json_within_the_limits_is_what_json_says() -> None:
    value = [1]
    for _ in range(DEEPEST - 2):
        value = [value]
    for each in (value, {"a": [1.5, None, True, "\u00e9", {}]}, 3, "x", -(2**70)):
        assert parse_json(json.dumps(each)) == each
