"""Writes docs/api.md, the reference of the public Python API, from the sources: `make docs`.

Signatures, fields and docstrings are taken as they are written; nothing is imported. The public names are
those of `lowbit.__all__`, and the classes of what the functions return.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/api.md"
PACKAGE = "lowbit"
RESULT = "Result"  # the base class of results, explained once
# Besides those of the functions.
RESULT_MODULES = ("lowbit.api.verification", "lowbit.api.writer", "lowbit.deploy.gains")
USAGE = ("property", "classmethod", "staticmethod", "contextmanager")
INTRODUCTION = """\
# Python API

The names of `import lowbit`, and what its functions return. [Commands](commands.md) have a page of their own;
[examples](../examples/README.md) and [notebooks](../notebooks/quantize_my_model.ipynb) show how the pieces go
together. Other modules can be imported, but may change without notice. This page is made from the docstrings
by `make docs`.
"""


@dataclass(frozen=True)
class Source:
    """A module's file, its lines and its syntax tree."""

    path: Path
    lines: list[str]
    tree: ast.Module

    def text(self, first: int, last: int) -> str:
        """Lines `first` to `last`, counted from 1, without their common indentation."""
        chosen = self.lines[first - 1 : last]
        margin = min(len(line) - len(line.lstrip()) for line in chosen if line.strip())
        return "\n".join(line[margin:] for line in chosen)


@cache
def source_of(module: str) -> Source:
    folder = ROOT / module.replace(".", "/")
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    text = path.read_text("utf-8")
    return Source(path, text.splitlines(), ast.parse(text))


def make_page() -> str:
    """The whole page."""
    names = public_names()
    functions = [name for name in names if isinstance(find(PACKAGE, name)[1], ast.FunctionDef)]
    classes = [name for name in names if name not in functions]
    results = result_classes(functions)
    contents, sections = [], []
    for title, members in (("Functions", functions), ("Classes", classes), ("Results", list(results))):
        links = " · ".join(f"[`{name}`](#{anchor(name)})" for name in members)
        contents.append(f"| {title.lower()} | {links} |")
        sections.append(f"## {title}")
        sections += [
            entry(*results[name]) if name in results else entry(*find(PACKAGE, name), f"{PACKAGE}.{name}")
            for name in members
        ]
    table = "\n".join(["| | |", "|---|---|", *contents])
    return "\n\n".join([INTRODUCTION.rstrip(), table, *sections]) + "\n"


def public_names() -> list[str]:
    """`lowbit.__all__`, without names like __version__."""
    for node in source_of(PACKAGE).tree.body:
        if isinstance(node, ast.Assign) and _target(node) == "__all__":
            names = [name for name in ast.literal_eval(node.value) if not name.startswith("__")]
            return sorted(names, key=str.casefold)
    raise SystemExit(f"{PACKAGE} has no __all__")


def result_classes(functions: list[str]) -> dict[str, tuple[Source, ast.ClassDef]]:
    """The classes that the functions return, their base class, and those of their fields."""
    found: dict[str, tuple[Source, ast.ClassDef]] = {}
    for function in functions:
        source, node = find(PACKAGE, function)
        waiting = [(name, source) for name in _names_in(node.returns)]
        while waiting:
            name, where = waiting.pop(0)
            here = _described_class(where, name)
            if here is None or name in found or name in public_names():
                continue
            found[name] = here
            fields = [part for part in here[1].body if isinstance(part, ast.AnnAssign)]
            waiting += [(word, here[0]) for part in fields for word in _names_in(part.annotation)]
            if RESULT in [ast.unparse(base) for base in here[1].bases]:
                found.setdefault(RESULT, find("lowbit.api.result", RESULT))
    return dict(sorted(found.items(), key=lambda item: item[0] != RESULT))


def _described_class(source: Source, name: str) -> tuple[Source, ast.ClassDef] | None:
    """A class of the module, or one that it imports from the modules whose classes are results, too."""
    for part in source.tree.body:
        if isinstance(part, ast.ClassDef) and part.name == name:
            return source, part
        is_result = isinstance(part, ast.ImportFrom) and str(part.module) in RESULT_MODULES
        if is_result and name in [alias.name for alias in part.names]:
            found, node = find(str(part.module), name)
            return (found, node) if isinstance(node, ast.ClassDef) else None
    return None


def _names_in(annotation: ast.expr | None) -> list[str]:
    return [part.id for part in ast.walk(annotation) if isinstance(part, ast.Name)] if annotation else []


def anchor(name: str) -> str:
    """Where GitHub puts the heading of a name."""
    return f"{PACKAGE}{name}".lower() if name in public_names() else name.lower()


def entry(source: Source, node: ast.stmt, title: str = "") -> str:
    """The heading, signature and docstring of one name, and of its methods."""
    link = f"[{source.path.relative_to(ROOT)}](../{source.path.relative_to(ROOT)})"
    parts = [f"### {title or node.name}"]
    if isinstance(node, ast.ClassDef):
        parts += [_code(class_head(source, node)), docstring(node)]
        parts += [
            f"{_code(signature(source, method))}\n\n{docstring(method)}".rstrip() for method in methods(node)
        ]
    elif isinstance(node, ast.FunctionDef):
        parts += [_code(signature(source, node)), docstring(node)]
    else:
        parts.append(_code(source.text(node.lineno, node.end_lineno)))
    return "\n\n".join(part for part in [*parts, link] if part)


def find(module: str, name: str) -> tuple[Source, ast.stmt]:
    """Where a name is defined: its module's source, and the statement; imports are followed."""
    source = source_of(module)
    for node in source.tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return source, node
        if isinstance(node, ast.Assign | ast.AnnAssign) and _target(node) == name:
            return source, node
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    return find(node.module, alias.name)
        if isinstance(node, ast.Assign) and _target(node) == "_LAZY":  # see lowbit/__init__.py
            modules = ast.literal_eval(node.value)
            if name in modules:
                return find(modules[name], name)
    raise SystemExit(f"{name} is in the __all__ of {module}, which does not define it")


def signature(source: Source, node: ast.FunctionDef) -> str:
    """A function's head as written, under the decorators that change how it is used."""
    last = max(node.lineno, node.body[0].lineno - 1)
    head = re.sub(r":( \.\.\.)?\s*\Z", "", source.text(node.lineno, last))
    decorators = [f"@{word}" for word in map(ast.unparse, node.decorator_list) if word in USAGE]
    return "\n".join([*decorators, head])


def class_head(source: Source, node: ast.ClassDef) -> str:
    """A class with its public fields and their comments, or with the head of its constructor."""
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    head = f"class {node.name}({bases}):" if bases else f"class {node.name}:"
    body = []
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and not _target(part).startswith("_"):
            body.append(source.text(part.lineno, part.end_lineno))
        elif isinstance(part, ast.FunctionDef) and part.name == "__init__":
            body.append(signature(source, part))
    indented = "\n".join(body).replace("\n", "\n    ")
    return f"{head}\n    {indented}" if body else head.removesuffix(":")


def methods(node: ast.ClassDef) -> list[ast.FunctionDef]:
    """Its public methods that say what they do."""
    return [
        part
        for part in node.body
        if isinstance(part, ast.FunctionDef) and not part.name.startswith("_") and ast.get_docstring(part)
    ]


def docstring(node: ast.ClassDef | ast.FunctionDef) -> str:
    """The docstring as Markdown: what is Python in it becomes a block of code."""
    text = (ast.get_docstring(node) or "").replace("  # doctest: +SKIP", "")
    paragraphs = re.split(r"\n\s*\n", text)
    return "\n\n".join(_code(text) if is_code(text) else text for text in paragraphs if text)


def is_code(paragraph: str) -> bool:
    """Whether it is an example: Python that does something.

    >>> is_code("net = prepare(net, recipe)"), is_code(">>> 1 + 1"), is_code("The model, in place")
    (True, True, False)
    """
    if paragraph.startswith(">>>"):
        return True
    try:
        statements = ast.parse(paragraph).body
    except SyntaxError:
        return False
    calls = any(isinstance(part, ast.Call) for statement in statements for part in ast.walk(statement))
    return calls or any(not isinstance(statement, ast.Expr) for statement in statements)


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _target(node: ast.Assign | ast.AnnAssign) -> str:
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    return target.id if isinstance(target, ast.Name) else ""


if __name__ == "__main__":
    PAGE.write_text(make_page(), "utf-8")
    sys.stdout.write(f"{PAGE.relative_to(ROOT)}\n")
