"""The installed distribution is whole: four folders as one import package, and nothing heavy behind it."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
DISTRIBUTION = "duplex-gateway"
FOLDERS = {
    "duplex": "duplex",
    "adapters": "duplex.adapters",
    "codecs": "duplex.codecs",
    "clients": "duplex.clients",
}
TOO_HEAVY = {"torch", "tensorflow", "jax", "transformers", "vllm", "triton"}

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PYPROJECT["tool"]["setuptools"]


def source_modules() -> set[str]:
    """Import names of all Python files below the four top-level folders, less those in folders of data."""
    data = {folder for folder, _ in package_data() if not (folder / "__init__.py").exists()}
    names = set()
    for folder, package in FOLDERS.items():
        for path in (ROOT / folder).rglob("*.py"):
            if path.parent not in data:
                parts = path.relative_to(ROOT / folder).with_suffix("").parts
                names.add(".".join((package, *parts)))
    return names


def package_data() -> list[tuple[Path, str]]:
    """Folder and pattern of all data that goes with packages."""
    found = []
    for package, patterns in SETUPTOOLS["package-data"].items():
        folder, top = max(
            ((f, t) for f, t in FOLDERS.items() if f"{package}.".startswith(f"{t}.")), key=lambda e: len(e[1])
        )
        base = ROOT.joinpath(folder, *package[len(top) + 1 :].split("."))
        found += [((base / pattern).parent, Path(pattern).name) for pattern in patterns]
    return found


def installed_modules() -> list[str]:
    names = set()
    for package in FOLDERS.values():
        path = importlib.import_module(package).__path__
        names |= {package} | {module.name for module in pkgutil.walk_packages(path, package + ".")}
    return sorted(name for name in names if not name.endswith(".__main__"))


def test_packages_list_covers_every_folder() -> None:
    assert set(SETUPTOOLS["packages"]) == {name.rpartition(".")[0] for name in source_modules()}


def test_package_dir_maps_the_four_folders() -> None:
    assert SETUPTOOLS["package-dir"] == {package: folder for folder, package in FOLDERS.items()}


def test_package_data_patterns_match_files() -> None:
    for folder, pattern in package_data():
        assert list(folder.glob(pattern)), f"no file matches {folder}/{pattern}"


def test_data_of_packages_says_whose_it_is() -> None:
    notice = (ROOT / "NOTICE").read_text()
    for folder, pattern in package_data():
        if pattern == "py.typed":
            continue
        assert f"{folder.relative_to(ROOT)}/" in notice
        words = "\n".join(
            path.read_text() for path in folder.iterdir() if path.name.startswith(("LICENSE", "NOTICE"))
        )
        for path in folder.glob(pattern):
            if not path.name.startswith(("LICENSE", "NOTICE")):
                assert path.name in words, path


def test_licence_files_are_there() -> None:
    for pattern in PYPROJECT["project"]["license-files"]:
        assert list(ROOT.glob(pattern)), pattern
    assert "Apache License" in (ROOT / "LICENSE").read_text()


def test_every_source_module_is_installed() -> None:
    expected = {name.removesuffix(".__init__").removesuffix(".__main__") for name in source_modules()}
    assert expected - set(installed_modules()) == set()


def imported_at_once(name: str) -> set[str]:
    """What a module imports at its top level, in functions not, by whatever name."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    names = set()
    for node in ast.parse(Path(spec.origin).read_text()).body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def modules_of_workers(modules: list[str]) -> set[str]:
    """Modules that need what is too heavy for the gateway, themselves or by way of others."""
    imports = {name: imported_at_once(name) for name in modules}
    heavy = TOO_HEAVY | {"tokenizers"}
    found: set[str] = set()
    while more := {
        name
        for name, wanted in imports.items()
        if name not in found and (wanted & found or {other.partition(".")[0] for other in wanted} & heavy)
    }:
        found |= more
    return found


def test_every_module_imports_without_torch() -> None:
    """In a fresh process: one module must not lean on what another happened to import. What runs in worker
    processes alone is no part of the gateway."""
    modules = installed_modules()
    workers = modules_of_workers(modules)
    models = ("duplex.adapters.qwen3_tts.", "duplex.adapters.mage_vl.")
    assert {name for name in workers if not name.startswith(models)} == set()
    assert {f"{model}adapter" for model in models} <= set(modules) - workers
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        f"print(sorted({TOO_HEAVY!r} & set(sys.modules)))\n"
    )
    rest = sorted(set(modules) - workers)
    done = subprocess.run([sys.executable, "-c", code, *rest], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_codecs_stays_the_standard_library() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import codecs as a, duplex.codecs as b; print(a.__file__, b.__file__)"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    standard, ours = done.stdout.split()
    assert Path(standard).name == "codecs.py"
    assert Path(ours).parent.name == "codecs"


def test_no_top_level_name_but_duplex_is_installed() -> None:
    owners = importlib.metadata.packages_distributions()
    ours = {name for name, owner in owners.items() if DISTRIBUTION in owner}
    assert {name for name in ours if not name.startswith("__editable__")} <= {"duplex"}
    for name in ("adapters", "clients"):
        assert DISTRIBUTION not in owners.get(name, [])


def test_typed_marker_is_installed() -> None:
    import duplex

    assert any((Path(entry) / "py.typed").is_file() for entry in duplex.__path__)


@pytest.mark.parametrize("group", ["console_scripts", "duplex.adapters"])
def test_entry_points_resolve(group: str) -> None:
    points = [
        point
        for point in importlib.metadata.entry_points(group=group)
        if point.dist is not None and canonicalize_name(point.dist.name) == DISTRIBUTION
    ]
    assert points
    for point in points:
        assert callable(point.load()), point


def requirement_closure(extras: set[str]) -> set[str]:
    """Names of all distributions that an install with these extras needs here, installed or not."""
    environment = {key: str(value) for key, value in default_environment().items()}
    seen: set[tuple[str, frozenset[str]]] = set()
    queue = [(DISTRIBUTION, frozenset(extras))]
    names = set()
    while queue:
        entry = queue.pop()
        if entry in seen:
            continue
        seen.add(entry)
        name, wanted = entry
        names.add(name)
        try:
            lines = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for line in lines:
            requirement = Requirement(line)
            markers = requirement.marker
            if markers is None or any(
                markers.evaluate({**environment, "extra": extra}) for extra in (wanted or {""})
            ):
                queue.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return names


@pytest.mark.parametrize("extras", [set(), {"embedded"}], ids=["core", "embedded"])
def test_no_torch_behind_the_default_installs(extras: set[str]) -> None:
    names = requirement_closure(extras)
    assert {"numpy", "starlette"} <= names
    assert "onnxruntime" in names if extras else "onnxruntime" not in names
    assert not names & TOO_HEAVY
    assert not [name for name in names if name.startswith("nvidia-")]


def test_extras_that_the_readme_names_exist() -> None:
    extras = set(PYPROJECT["project"]["optional-dependencies"])
    named = set()
    for match in re.finditer(r'pip install "\.\[([a-z0-9,_-]+)\]"', (ROOT / "README.md").read_text()):
        named |= set(match[1].split(","))
    assert {"embedded", "dev"} <= named <= extras


def test_ci_runs_the_test_command_of_the_readme() -> None:
    command = 'pip install ".[dev,embedded]" && pytest'
    fenced = re.findall(r"```(?:console|sh|bash)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = [line.removeprefix("$ ").strip() for block in fenced for line in block.splitlines()]
    assert command in lines
    assert f"'{command}'" in (ROOT / ".ci" / "run").read_text()
