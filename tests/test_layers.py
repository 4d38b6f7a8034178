"""The rules of the tree that tools do not hold: who may import whom, and what a module may not do.

Each rule is a function from one module (or all of them) to complaints, and each is shown a bad source too.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = ("kernels", "backends", "policies", "gateway")
"""From the bottom to the top."""
MAX_LINES = 400
MAX_MODULES = 20
SHARED_BACKENDS = {
    f"backends.{name}"
    for name in (
        "operations",
        "protocol",
        "stream",
        "errors",
        "header_names",
        "charges",
        "clock",
        "config",
        "drafts",
        "health",
        "json_errors",
        "kv_events",
        "plain_file",
        "prompts.rendezvous",
        "prompts.text",
        "quotas.upstream_keys",
        "resume",
        "sse",
        "recorded_pace",
        "waits",
    )
}
"""What policies may know of backends."""
CONCRETE = (
    *("backends.http", "backends.scripted.script", "backends.engine", "backends.serving"),
    *("policies.cache", "policies.pool"),
)
"""What only the assembly may import at run time."""
ENGINE_MAY = {
    "kernels",
    "gguf",
    "jinja2",
    "llguidance",
    "numpy",
    "safetensors",
    "tokenizers",
    "torch",
    "transformers",
    "triton",
}
TRAINING = "policies.cache.semantic.sameness.training"
HEAVY = {"torch", "faiss", "sentence_transformers", "triton", "redis", "opentelemetry"}
ENVIRONMENT = {"os.environ", "os.environb", "os.getenv", "os.getenvb"}


@dataclass(frozen=True)
class Import:
    """One imported module; `kind` is when it happens: at "import", in a "function", or for "types" only."""

    name: str
    kind: str


@dataclass(frozen=True)
class Module:
    """One source file by its dotted name; a package is named without `__init__`."""

    name: str
    source: str
    is_package: bool = False

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed source."""
        return ast.parse(self.source)

    @property
    def layer(self) -> str:
        """The top-level package."""
        return self.name.partition(".")[0]

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Everything in it."""
        return list(ast.walk(self.tree))

    @cached_property
    def imports(self) -> list[Import]:
        """Every import, wherever it stands; `from a import b` names a.b, which may be a name in a."""
        return list(self._imports(self.tree, "import"))

    def _imports(self, node: ast.AST, kind: str) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                continue
            if isinstance(child, ast.Import):
                yield from (Import(alias.name, kind) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                yield from (Import(f"{self._origin(child)}.{alias.name}", kind) for alias in child.names)
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                yield from self._imports(ast.Module(child.body, []), "types")
                yield from self._imports(ast.Module(child.orelse, []), kind)
            else:
                is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
                yield from self._imports(child, "function" if is_function and kind == "import" else kind)

    def _origin(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = self.name.split(".")[: None if self.is_package else -1]
        parents = package[: len(package) - node.level + 1]
        return ".".join([*parents, node.module] if node.module else parents)


def is_within(name: str, *packages: str) -> bool:
    """Whether a dotted name is one of these packages or lies in one."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def imports_run_downwards(module: Module) -> Iterator[str]:
    """A layer imports itself and lower ones only, wherever the import stands."""
    for found in module.imports:
        layer = found.name.partition(".")[0]
        if layer in LAYERS and LAYERS.index(layer) > LAYERS.index(module.layer):
            yield f"imports {found.name} from above"


def policies_know_only_the_vocabulary(module: Module) -> Iterator[str]:
    """Policies wrap any backend, so they know none."""
    if module.layer == "policies":
        for found in module.imports:
            if is_within(found.name, "backends") and not is_within(found.name, *SHARED_BACKENDS):
                yield f"imports {found.name}"


def engine_runs_without_the_web_stack(module: Module) -> Iterator[str]:
    """Kernels and engine run on a machine that has nothing but numbers."""
    if is_within(module.name, "kernels", "backends.engine"):
        for found in module.imports:
            top = found.name.partition(".")[0]
            if not (top in sys.stdlib_module_names or top in ENGINE_MAY or is_within(found.name, "backends.engine")):
                yield f"imports {found.name}"


def only_the_assembly_builds(module: Module) -> Iterator[str]:
    """The rest of the gateway is handed protocols; concrete classes are types to it at most, but for settings, which
    are values.

    Commands about models serve nobody: they may call the engine, once they run.
    """
    if module.layer == "gateway" and not is_within(module.name, "gateway.assembly"):
        for found in module.imports:
            is_called = found.kind == "function" and is_within(found.name, "backends.engine")
            if is_called and is_within(module.name, "gateway.cli"):
                continue
            if found.kind != "types" and found.name.startswith(CONCRETE) and ".settings." not in found.name:
                yield f"imports {found.name}"


def heavy_modules_load_late(module: Module) -> Iterator[str]:
    """A gateway without models starts at once, so heavy modules load in the function that needs them."""
    is_part_of_gateway = module.layer != "kernels" and not is_within(module.name, TRAINING)
    if is_part_of_gateway and not is_within(module.name, "backends.engine"):
        for found in module.imports:
            if found.kind == "import" and found.name.partition(".")[0] in HEAVY:
                yield f"imports {found.name} when it is itself imported"


def environment_is_read_in_settings(module: Module) -> Iterator[str]:
    """What a process depends on is told in one place."""
    if module.name != "gateway.settings":
        if any(found.name in ENVIRONMENT for found in module.imports):
            yield "imports the environment"
        for node in module.nodes:
            if isinstance(node, ast.Attribute) and f"os.{node.attr}" in ENVIRONMENT and ast.unparse(node.value) == "os":
                yield f"line {node.lineno}: reads the environment"


def module_says_what_it_is(module: Module) -> Iterator[str]:
    """Every module begins with its docstring."""
    if not ast.get_docstring(module.tree):
        yield "has no docstring"


def package_is_a_docstring(module: Module) -> Iterator[str]:
    """Importing a package does nothing."""
    if module.is_package and len(module.tree.body) != 1:
        yield "holds more than its docstring"


def file_is_short(module: Module) -> Iterator[str]:
    """One concept fits in 400 lines."""
    num_lines = len(module.source.splitlines())
    if num_lines > MAX_LINES:
        yield f"has {num_lines} lines, {MAX_LINES} are allowed"


def only_the_command_line_prints(module: Module) -> Iterator[str]:
    """Everyone else has a logger or an answer to speak through."""
    if not is_within(module.name, "gateway.cli"):
        for node in module.nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                yield f"line {node.lineno}: prints"


def kernels_are_found_by_name(module: Module) -> Iterator[str]:
    """What Triton compiles stands in files that end in `_kernel.py`, and these come through the door to Triton."""
    if module.layer == "kernels":
        is_named = module.name.endswith("_kernel")
        if re.search(r"^@jit\(", module.source, re.MULTILINE) and not is_named:
            yield "holds kernels, so its name has to end in _kernel"
        if is_named and not any(is_within(found.name, "kernels.jit") for found in module.imports):
            yield "is named for a kernel and has none"


def files_are_called_by_their_names(module: Module) -> Iterator[str]:
    """A file that a docstring names in backquotes is there: beside the module, or where its path says."""
    path = ROOT / module.name.replace(".", "/")
    folder = path if module.is_package else path.parent
    for name in re.findall(r"`([a-z][\w/]*\.py)`", module.source):
        if not any((place / name).exists() for place in (folder, ROOT, ROOT / module.layer)):
            yield f"names {name}, which is not there"


def import_cycle(modules: list[Module]) -> list[str]:
    """The names of a cycle of imports, of whatever kind they are; [] where there is none."""
    known = {module.name for module in modules}
    graph: dict[str, set[str]] = {}
    for module in modules:
        targets = (found.name for found in module.imports)
        graph[module.name] = {target if target in known else target.rpartition(".")[0] for target in targets} & known
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle
    return []


RULES: list[Callable[[Module], Iterator[str]]] = [
    imports_run_downwards,
    policies_know_only_the_vocabulary,
    engine_runs_without_the_web_stack,
    only_the_assembly_builds,
    heavy_modules_load_late,
    environment_is_read_in_settings,
    module_says_what_it_is,
    package_is_a_docstring,
    file_is_short,
    only_the_command_line_prints,
    kernels_are_found_by_name,
    files_are_called_by_their_names,
]


@cache
def source_tree(*folders: str) -> list[Module]:
    """Every module of every layer that exists, or of these folders; read and parsed once."""
    modules = []
    for path in sorted(file for folder in folders or LAYERS for file in (ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        modules.append(Module(name, path.read_text(encoding="utf-8"), is_package))
    return modules


def test_rules_hold_in_the_whole_tree() -> None:
    """No module of any layer breaks a rule. One test, so that one process parses the tree."""
    complaints = [
        f"{rule.__name__}: {module.name} {complaint}"
        for module in source_tree()
        for rule in RULES
        for complaint in rule(module)
    ]

    assert complaints == []


def crowded_folders(modules: list[Module]) -> dict[str, int]:
    """Packages that hold more modules than can be taken in at a glance, by how many they hold."""
    sizes = Counter(module.name.rpartition(".")[0] for module in modules if not module.is_package)
    return {name: size for name, size in sizes.items() if size > MAX_MODULES}


def test_no_folder_is_crowded() -> None:
    """A newcomer finds a thing by the names of a few rooms."""
    assert crowded_folders(source_tree(*LAYERS, "tests")) == {}
    assert crowded_folders([Module(f"backends.m{number}", "") for number in range(MAX_MODULES + 1)])


def classes_of_one_name(modules: list[Module]) -> dict[str, list[str]]:
    """Names of public classes that several modules define, with the modules."""
    places: dict[str, list[str]] = {}
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(module.name)
    return {name: found for name, found in places.items() if len(found) > 1}


def test_no_public_class_name_has_two_meanings() -> None:
    """Who reads a name in a signature knows which thing it is."""
    assert classes_of_one_name(source_tree()) == {}
    assert classes_of_one_name([Module("backends.a", "class Seen: ..."), Module("policies.b", "class Seen: ...")])


def test_tree_has_no_import_cycle() -> None:
    """Modules can be read one by one, from the bottom to the top: late imports and those for types close no cycle."""
    assert import_cycle(source_tree()) == []


def test_tree_holds_every_layer_that_is_shipped() -> None:
    """The rules would hold of an empty list too, so this one is not empty."""
    names = {module.name for module in source_tree()}

    assert {"backends.protocol", "backends.http", "policies.schema", "gateway.settings"} <= names


@pytest.mark.parametrize(
    ("rule", "name", "source"),
    [
        (imports_run_downwards, "backends.x", "import gateway.app"),
        (imports_run_downwards, "backends.x", "def f():\n    from policies.schema import Policy"),
        (imports_run_downwards, "kernels.x", "from backends import protocol"),
        (imports_run_downwards, "policies.x", "if TYPE_CHECKING:\n    import gateway.app"),
        (policies_know_only_the_vocabulary, "policies.x", "from backends.registry import Registry"),
        (policies_know_only_the_vocabulary, "policies.x", "from backends import http"),
        (policies_know_only_the_vocabulary, "policies.x", "import backends.http.openai"),
        (engine_runs_without_the_web_stack, "kernels.x", "import pydantic"),
        (engine_runs_without_the_web_stack, "backends.engine.x", "from backends.config import Config"),
        (engine_runs_without_the_web_stack, "backends.engine.x", "def f():\n    import httpx"),
        (only_the_assembly_builds, "gateway.app", "from backends.http.openai import OpenAIBackend"),
        (only_the_assembly_builds, "gateway.app", "from backends.scripted.script import Scripted"),
        (only_the_assembly_builds, "gateway.api.x", "def f():\n    from policies.cache.exact import ExactCache"),
        (only_the_assembly_builds, "gateway.api.x", "from policies import pool"),
        (only_the_assembly_builds, "gateway.cli.x", "import backends.engine.model.quantize"),
        (only_the_assembly_builds, "gateway.cli.x", "def f():\n    import backends.serving.start"),
        (only_the_assembly_builds, "gateway.api.x", "def f():\n    import backends.engine.model.quantize"),
        (heavy_modules_load_late, "policies.x", "import torch.nn"),
        (heavy_modules_load_late, "policies.x", "try:\n    from redis import asyncio\nexcept ImportError:\n    pass"),
        (heavy_modules_load_late, "gateway.x", "class A:\n    import faiss"),
        (environment_is_read_in_settings, "gateway.app", "import os\nos.environ['A']"),
        (environment_is_read_in_settings, "backends.x", "import os\ndef f():\n    return os.getenv('A')"),
        (environment_is_read_in_settings, "backends.x", "from os import environ as e"),
        (module_says_what_it_is, "backends.x", "A = 1"),
        (file_is_short, "backends.x", "A = 1\n" * (MAX_LINES + 1)),
        (only_the_command_line_prints, "gateway.app", "def f():\n    print('x')"),
        (kernels_are_found_by_name, "kernels.rows.x", "from kernels.jit import jit\n@jit()\ndef f(): ..."),
        (kernels_are_found_by_name, "kernels.rows.x_kernel", "import torch"),
        (files_are_called_by_their_names, "kernels.rows.norm", '"""See `twin.py`."""'),
    ],
)
def test_rule_complains_about_a_bad_module(rule: Callable[[Module], Iterator[str]], name: str, source: str) -> None:
    """Each rule can fail."""
    assert len(list(rule(Module(name, source)))) == 1


@pytest.mark.parametrize(
    ("rule", "name", "source"),
    [
        (imports_run_downwards, "gateway.x", "import policies.schema, backends.errors, os"),
        (policies_know_only_the_vocabulary, "policies.x", "from backends import errors\nfrom backends.sse import DONE"),
        (engine_runs_without_the_web_stack, "backends.engine.x", "import math, torch\nfrom . import scheduler"),
        (engine_runs_without_the_web_stack, "backends.http.x", "import httpx"),
        (only_the_assembly_builds, "gateway.assembly.pools", "from policies.pool.pool import Pool"),
        (only_the_assembly_builds, "gateway.cli.x", "def f():\n    import backends.engine.model.quantize"),
        (only_the_assembly_builds, "gateway.x", "if TYPE_CHECKING:\n    from policies.cache.exact import ExactCache"),
        (heavy_modules_load_late, "policies.x", "def f():\n    import torch"),
        (heavy_modules_load_late, "backends.engine.x", "import torch"),
        (environment_is_read_in_settings, "gateway.settings", "import os\nos.environ['A']"),
        (environment_is_read_in_settings, "backends.x", "def f(info):\n    return info.environ"),
        (file_is_short, "backends.x", "A = 1\n" * MAX_LINES),
        (only_the_command_line_prints, "gateway.cli.main", "print('x')"),
        (kernels_are_found_by_name, "kernels.rows.x_kernel", "from kernels.jit import jit\n@jit()\ndef f(): ..."),
        (kernels_are_found_by_name, "kernels.rows.launch", "from kernels.jit import launched"),
        (files_are_called_by_their_names, "kernels.rows.norm_kernel", '"""See `norm.py` and `kernels/dispatch.py`."""'),
    ],
)
def test_rule_accepts_a_good_module(rule: Callable[[Module], Iterator[str]], name: str, source: str) -> None:
    """No rule complains about what is allowed."""
    assert list(rule(Module(name, source))) == []


def test_package_with_code_is_a_complaint() -> None:
    """A docstring is all a package may hold."""
    assert list(package_is_a_docstring(Module("backends", '"""What."""\nimport os', is_package=True)))
    assert not list(package_is_a_docstring(Module("backends", '"""What."""', is_package=True)))


def test_import_cycle_is_found() -> None:
    """A cycle is one through relative imports, late ones and those for types only."""
    a = Module("backends.a", "from backends import b")
    back = Module("backends.b", "from . import a")
    late = Module("backends.b", "def f():\n    from backends.a import x")
    typed = Module("backends.b", "if TYPE_CHECKING:\n    from backends.a import x")

    assert set(import_cycle([a, back])) == {"backends.a", "backends.b"}
    assert set(import_cycle([a, late])) == {"backends.a", "backends.b"}
    assert set(import_cycle([a, typed])) == {"backends.a", "backends.b"}
    assert import_cycle([typed, late]) == []
