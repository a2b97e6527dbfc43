"""Packages for benchmarks on a machine without network: what the packers have in common.

A packer writes archives where there is a package index, and lays them out on the other machine, beside a copy
of the repository, with this working tree as the package `duplex`. Only the standard library is needed there.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PLATFORMS: Final = ("2_28", "2_27", "2_17", "2_24", "2_31", "2_34")
NOT_PACKED: Final = (".pyi", ".pyx", ".pxd", ".c", ".h")


def download(names: tuple[str, ...], python: str, folder: Path) -> list[Path]:
    """Wheels of exactly those packages."""
    platforms = [
        *(f"manylinux_{version}_x86_64" for version in PLATFORMS),
        *("manylinux2014_x86_64", "manylinux1_x86_64"),
    ]
    command = [
        *(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"),
        *("--python-version", python, "--implementation", "cp", "-d", str(folder)),
        *(part for platform in platforms for part in ("--platform", platform)),
    ]
    subprocess.run([*command, *names], check=True)
    return sorted(folder.glob("*.whl"))


def link_tree(target: Path) -> None:
    """The working tree as an installed package: links, and the entry points of its adapters."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    package = target / "tree" / "duplex"
    package.mkdir(parents=True, exist_ok=True)
    folders = project["tool"]["setuptools"]["package-dir"]
    sources = {path.name: path for path in (ROOT / "duplex").iterdir()}
    sources |= {name.partition(".")[2]: ROOT / folder for name, folder in folders.items() if "." in name}
    for name, source in sources.items():
        place = package / name
        if place.is_symlink():
            place.unlink()
        place.symlink_to(source)
    about = project["project"]
    info = target / "tree" / f"{about['name'].replace('-', '_')}-{about['version']}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {about['version']}\n"
    )
    lines = []
    for group, points in about["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items()), ""]
    (info / "entry_points.txt").write_text("\n".join(lines))


def extract(wheels: Iterable[Path], site: Path, *, without: tuple[str, ...] = ()) -> None:
    """Lay wheels out, as an installation would; members whose names begin with one of `without` stay out."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as file:
            for name in file.namelist():
                if not name.startswith(without) and not name.endswith(NOT_PACKED):
                    file.extract(name, site)
        wheel.unlink()


def archive(tree: Path, file: Path) -> None:
    """A tree as one file."""
    with tarfile.open(file, "w:xz", preset=6) as out:
        for path in sorted(tree.rglob("*")):
            if path.is_file():
                out.add(path, path.relative_to(tree))
    print(f"{file}: {file.stat().st_size / 1e6:.1f} MB")


def unpack_archive(file: Path, target: Path) -> None:
    """The tree again, and the product."""
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file) as packed:
        packed.extractall(target, filter="data")
    link_tree(target)


def python_path(target: Path) -> str:
    """The line for the shell, where the packages are in `site`; what is installed there comes after them."""
    return f"export PYTHONPATH={target / 'tree'}:{target / 'site'}${{PYTHONPATH:+:$PYTHONPATH}}"


def command(doc: str, pack: Callable[[Path, str], None], unpack: Callable[[Path, Path], None]) -> int:
    """`pack FOLDER [--python 3.12]` and `unpack FOLDER TARGET`."""
    parser = argparse.ArgumentParser(description=doc.partition("\n")[0])
    commands = parser.add_subparsers(required=True, dest="command")
    packing = commands.add_parser("pack")
    packing.add_argument("folder", type=Path)
    packing.add_argument("--python", default="3.12", help="the other machine's Python")
    unpacking = commands.add_parser("unpack")
    unpacking.add_argument("folder", type=Path)
    unpacking.add_argument("target", type=Path)
    args = parser.parse_args()
    if args.command == "pack":
        args.folder.mkdir(parents=True, exist_ok=True)
        pack(args.folder, args.python)
    else:
        unpack(args.folder, args.target.absolute())
    return 0
