"""A network's own source as one text that needs torch alone, for people who do not have this package."""

import ast
import inspect
from dataclasses import dataclass
from importlib import import_module


@dataclass(frozen=True, slots=True)
class Part:
    """What a name at the top of a module stands for."""

    text: str  # an import; or a class, function or value, with the comment above it
    uses: frozenset[str]  # the names that occur in it
    imported: bool = False


def standalone_source(network: type) -> str:
    """The source of a class of this package, after all that it uses of the package and of others.

    >>> from rattle.models.vgg import VGG16
    >>> text = standalone_source(VGG16)
    >>> "class Network(" in text, "class SubsampledConv1x1(" in text, "from rattle" in text
    (True, False, False)
    """
    parts: dict[str, Part] = {}
    _collect(network.__module__, parts)
    needed, size = {network.__name__}, 0
    while len(needed) > size:
        size = len(needed)
        needed |= {used for name in needed for used in parts[name].uses if used in parts}
    chosen = [part for name, part in parts.items() if name in needed]
    imports = sorted((part.text for part in chosen if part.imported), key=lambda line: (line.startswith("from"), line))
    return "\n\n\n".join(["\n".join(imports), *(part.text for part in chosen if not part.imported)])


def _collect(module: str, parts: dict[str, Part]) -> None:
    """Add what a module defines and imports to `parts`, after the modules of this package that it imports."""
    source = inspect.getsource(import_module(module))
    lines = source.splitlines()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("rattle."):
            _collect(str(node.module), parts)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            start = f"from {node.module} import" if isinstance(node, ast.ImportFrom) else "import"
            for each in node.names:
                parts[each.asname or each.name] = Part(f"{start} {ast.unparse(each)}", frozenset(), imported=True)
        elif not isinstance(node, ast.Expr):  # the docstring
            first = node.lineno - 1
            while lines[first - 1].startswith(("#", "@")):  # the comment above it, and decorators
                first -= 1
            names = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
            defined = getattr(node, "name", "") or next(n.id for n in names if isinstance(n.ctx, ast.Store))
            parts[defined] = Part("\n".join(lines[first : node.end_lineno]), frozenset(n.id for n in names))
