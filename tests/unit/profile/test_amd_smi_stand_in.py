"""The stand-in for AMD SMI has the functions, parameters, keys and codes of the package ``amdsmi``.

The package cannot be imported without ROCm, so its source is read. ``tools/setup_venv.sh dev`` puts it beside the
environment's packages.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from enum import EnumMeta
from pathlib import Path
from typing import Any

import pytest

from amd_smi import FakeAmdSmi
from watchglass.profile.sources import amd

#: Returned by versions before ROCm 6.2 only.
OLD_KEYS = {"cur_clk"}


class Package:
    """What the source of the package defines."""

    def __init__(self, folder: Path) -> None:
        exported = ast.parse((folder / "__init__.py").read_text())
        parts = [ast.parse((folder / f"amdsmi_{part}.py").read_text()) for part in ("interface", "exception")]
        self.exported = {
            alias.asname or alias.name
            for node in exported.body if isinstance(node, ast.ImportFrom) for alias in node.names
        }  # fmt: skip
        nodes = [node for part in parts for node in part.body]
        self.functions = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
        self.classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
        self.codes = {
            target.id: node.value.value
            for node in ast.parse((folder / "amdsmi_wrapper.py").read_text()).body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets if isinstance(target, ast.Name)
        }  # fmt: skip

    def required(self, name: str) -> list[str]:
        """The parameters of a function that have no default."""
        arguments = self.functions[name].args
        return [each.arg for each in arguments.args[: len(arguments.args) - len(arguments.defaults)]]

    def keys(self, name: str) -> set[str]:
        """The keys of dictionaries in a function."""
        return {
            key.value
            for node in ast.walk(self.functions[name]) if isinstance(node, ast.Dict)
            for key in node.keys if isinstance(key, ast.Constant)
        }  # fmt: skip


@pytest.fixture(scope="module")
def package() -> Package:
    folder = Path(sys.prefix) / "sources" / "amdsmi"
    if not folder.is_dir():
        pytest.skip(f"there is no source of amdsmi in {folder}; tools/setup_venv.sh dev puts it there")
    return Package(folder)


@pytest.fixture
def library() -> FakeAmdSmi:
    found = FakeAmdSmi()
    found.processes = [[(1, 1)], [(1, 1)]]
    found.amdsmi_init()
    return found


def keys_of(answer: Any) -> Iterator[str]:
    if isinstance(answer, list):
        for each in answer:
            yield from keys_of(each)
    elif isinstance(answer, dict):
        for key, value in answer.items():
            yield key
            yield from keys_of(value)


def test_the_sources_use_nothing_that_the_stand_in_lacks(library: FakeAmdSmi) -> None:
    """A call of a function that does not exist would read as a number that is not known."""
    tree = ast.parse(Path(amd.__file__).read_text())
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert {name for name in used if name.startswith("amdsmi_")} == {*library.answers(), "amdsmi_wrapper"}
    for name in (name for name in used if name.startswith(("AmdSmi", "AMDSMI_"))):
        assert hasattr(library, name) or hasattr(library.amdsmi_wrapper, name)


def test_its_functions_are_those_of_the_package(package: Package, library: FakeAmdSmi) -> None:
    assert set(library.answers()) <= package.exported
    for name, answer in library.answers().items():
        assert list(inspect.signature(answer).parameters) == package.required(name), name


def test_the_keys_of_its_answers_are_those_of_the_package(package: Package, library: FakeAmdSmi) -> None:
    kinds = {"clock_type": library.AmdSmiClkType.GFX, "sensor_type": 0, "metric": 0, "mem_type": 0, "block": 0}
    compared: set[str] = set()
    for key in ("clk", "cur_clk"):
        library.clock_key = key
        for name, answer in library.answers().items():
            parameters = list(inspect.signature(answer).parameters)
            if parameters[:1] == ["processor_handle"]:
                keys = set(keys_of(answer(0, *(kinds[each] for each in parameters[1:]))))
                assert keys - OLD_KEYS <= package.keys(name), name
                compared |= keys
    assert compared >= {"hip_id", "asic_serial", "gfx_activity", "socket_power", "clk", "vram_mem"}


def test_its_kinds_and_codes_are_those_of_the_package(package: Package, library: FakeAmdSmi) -> None:
    kinds = {name: kind for name, kind in vars(FakeAmdSmi).items() if isinstance(kind, EnumMeta)}
    assert len(kinds) == 5
    for name, kind in kinds.items():
        members = {
            node.targets[0].id: package.codes[node.value.attr]
            for node in package.classes[name].body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Attribute)
        }  # fmt: skip
        assert name in package.exported
        assert {each.name: each.value for each in kind}.items() <= members.items(), name
    assert vars(library.amdsmi_wrapper).items() <= package.codes.items()


def test_its_errors_are_those_of_the_package(package: Package) -> None:
    assert {"AmdSmiException", "AmdSmiLibraryException"} <= package.exported
    bases = package.classes["AmdSmiLibraryException"].bases
    assert [base.id for base in bases if isinstance(base, ast.Name)] == ["AmdSmiException"]
    text = ast.unparse(package.classes["AmdSmiLibraryException"])
    assert "self.err_code = err_code" in text
    assert r"Error code:\n\t{err_code} | {err_info}" in text
