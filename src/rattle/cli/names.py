"""Names and options read from the package's source, for answers that need not wait seconds for torch to be imported.

Nothing is listed twice: an attack is a key of ATTACKS in attacks/registry.py, an option a field of a command's Options.
Where a command knows more than the source shows (an objective's own settings), any option is taken for valid here.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1]
ATTACKS, OBJECTIVES, CATALOG = "rattle.attacks.registry", "rattle.objectives.registry", "rattle.recipes.catalog"


@cache
def tree(module: str) -> ast.Module:
    """The source of a module such as `rattle.attacks.registry`, or of a package's `__init__`."""
    path = SOURCE.joinpath(*module.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def find(module: str, name: str) -> tuple[str, ast.ClassDef | ast.expr] | None:
    """A class, or what is assigned to a name, as a module knows it, and the module of the package that defines it."""
    for node in tree(module).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return module, node
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if ast.unparse(target) == name:
                return module, node.value
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("rattle"):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return find(node.module, alias.name)
    return None


def assigned(module: str, name: str) -> ast.expr:
    """What a module assigns to a name."""
    found = find(module, name)
    if found is None or isinstance(found[1], ast.ClassDef):
        raise LookupError(f"{module} assigns nothing to {name}")
    return found[1]


def strings(module: str, node: ast.expr) -> list[str]:
    """What an expression iterates over: a tuple's items, or a dict's keys, those of `**` among them."""
    if isinstance(node, ast.Name):
        return strings(module, assigned(module, node.id))
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):  # ENSEMBLES["standard"]
        whole, key = assigned(module, node.value.id), ast.literal_eval(node.slice)
        if isinstance(whole, ast.Dict):
            return strings(module, whole.values[strings(module, whole).index(key)])
    if isinstance(node, ast.DictComp):
        return strings(module, node.generators[0].iter)
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return [each for key, value in pairs for each in ([ast.literal_eval(key)] if key else strings(module, value))]
    return list(ast.literal_eval(node))


def keys(module: str, name: str) -> list[str]:
    """The keys of the dict that a module assigns to a name."""
    return strings(module, assigned(module, name))


def attacks() -> list[str]:
    """As `list_attacks` gives them."""
    steps = ast.literal_eval(assigned(ATTACKS, "USUAL_STEPS"))
    return [*(f"{name}{steps}" for name in keys(ATTACKS, "COUNTED")), *keys(ATTACKS, "ATTACKS")]


def is_attack(name: str) -> bool:
    """Whether `get_attack` knows a name."""
    counted = rf"({'|'.join(keys(ATTACKS, 'COUNTED'))})(0*[1-9]\d*)?"
    return name in (*keys(ATTACKS, "ATTACKS"), *keys(ATTACKS, "RENAMED")) or re.fullmatch(counted, name) is not None


def objectives() -> list[str]:
    """The modules whose METHOD is registered."""
    methods = assigned(OBJECTIVES, "METHODS")
    assert isinstance(methods, ast.DictComp)
    assert isinstance(methods.generators[0].iter, ast.Tuple)
    return [
        f"rattle.objectives.{ast.unparse(each).removesuffix('.METHOD')}" for each in methods.generators[0].iter.elts
    ]


def argument(call: ast.expr, name: str) -> ast.expr | None:
    """A keyword's value in a call."""
    assert isinstance(call, ast.Call)
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def methods() -> list[str]:
    """The names of the training methods."""
    return [ast.literal_eval(name) for module in objectives() if (name := argument(assigned(module, "METHOD"), "name"))]


def recipes() -> list[str]:
    """The names of `list_recipes`, and some that a method lacks (-awp, -1st)."""
    settings = assigned(CATALOG, "SETTINGS")
    assert isinstance(settings, ast.Dict)
    usual = {ast.unparse(line.target): line.value for line in class_body(CATALOG, "Setting")}["models"]
    models = [ast.literal_eval(argument(value, "models") or usual or "()") for value in settings.values]
    return [
        f"{dataset}-{norm}-{model}-{method}{suffix}"
        for dataset, each in zip(keys(CATALOG, "SETTINGS"), models, strict=True)
        for norm in ("linf", "l2")
        for model in each
        for method in (*methods(), *(f"{method}-awp" for method in methods()))
        for suffix in keys(CATALOG, "ORDERS")
    ]


def is_recipe(name: str) -> bool:
    """Whether a name spells out a recipe; a model or variant that does not exist is for `get_recipe` to find."""
    datasets = "|".join(map(re.escape, keys(CATALOG, "SETTINGS")))
    return re.fullmatch(rf"({datasets})-(linf|l2)-.+-({'|'.join(map(re.escape, methods()))})(-.*)?", name) is not None


def find_class(module: str, name: str) -> tuple[str, ast.ClassDef] | None:
    """A class of the package by the name that a module knows it by, and the module that defines it."""
    found = find(module, name)
    return (found[0], found[1]) if found and isinstance(found[1], ast.ClassDef) else None


def class_body(module: str, name: str) -> list[ast.AnnAssign]:
    """The annotated lines of a class."""
    found = find_class(module, name)
    return [line for line in found[1].body if isinstance(line, ast.AnnAssign)] if found else []


def is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def fields(module: str, name: str) -> Iterator[tuple[str, str, ast.expr]]:
    """(defining module, name, annotation) of a dataclass' fields, those of its bases first."""
    found = find_class(module, name)
    if found is None:
        return
    where, node = found
    for base in node.bases:
        yield from fields(where, ast.unparse(base))
    for line in class_body(where, node.name):
        if "ClassVar" not in ast.unparse(line.annotation):
            yield where, ast.unparse(line.target), line.annotation


def options(module: str, name: str = "Options", prefix: str = "") -> Iterator[str]:
    """The options that tyro makes of a dataclass; ending in `.*` where any name may follow."""
    for where, field, annotation in fields(module, name):
        text = ast.unparse(annotation)
        if "Positional" in text:
            continue
        own = field.rstrip("_").replace("_", "-")
        whole = prefix + own + "." if "name=''" not in text else prefix
        members = [node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)]
        classes = [(where, name) for name in members if (found := find_class(where, name)) and is_dataclass(found[1])]
        if "Objective" in members:  # open to the classes of users
            yield f"--{whole}*"
            nodes = [(module, node) for module in objectives() for node in tree(module).body]
            classes = [(module, node.name) for module, node in nodes if isinstance(node, ast.ClassDef)]
        if classes:
            yield from (option for member in classes for option in options(*member, whole))
            if "|" in text:
                yield f"--{whole}kind"
        else:
            yield f"--{prefix}{own}"
            if "bool" in members:
                yield f"--{prefix}no-{own}"


def positionals(module: str, name: str = "Options") -> list[str]:
    return [field for _, field, annotation in fields(module, name) if "Positional" in ast.unparse(annotation)]
