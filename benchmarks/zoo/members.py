"""The programs of the zoo: what they declare, the classes of their faults, and the half that each belongs to."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PROGRAMS = HERE / "programs"
HALVES = ("development", "held-out")
#: What programs are written for. A program of another one than the first declares it.
FRAMEWORKS = ("pytorch", "keras", "jax")


@dataclass(frozen=True)
class FaultClass:
    """A way in which training programs are faulty.

    Attributes:
        name: Its name.
        half: The half of the zoo that has programs of it.
        causes: Ids of causes that are right for it.
        about: What the fault is.
        certain: Whether the fault is certain from the structure of a program.
        draw: Number of the draw that gave it its half. Classes that are added later are drawn among themselves, so that
            no class changes its half.
    """

    name: str
    half: str
    causes: tuple[str, ...]
    about: str
    certain: bool = False
    draw: int = 1


@dataclass(frozen=True)
class Member:
    """A program of the zoo: one script with one of its names.

    Attributes:
        script: The script.
        name: Name of a healthy variant or of a fault.
        half: The half that it counts for.
        task: What is learned.
        architecture: By what.
        about: What a healthy variant is; "" for a faulty program.
        fault: Class of the fault; None for a healthy program.
        twin: Name of the healthy twin; "" for a healthy program.
        ranks: Processes that train it together.
        framework: One of `FRAMEWORKS`.
    """

    script: Path
    name: str
    half: str
    task: str
    architecture: str
    about: str = ""
    fault: FaultClass | None = None
    twin: str = ""
    ranks: int = 1
    framework: str = FRAMEWORKS[0]

    @property
    def id(self) -> str:
        """Its name in tables and folders: ``"digits_mlp/adamw"``."""
        return f"{self.script.stem}/{self.name}"

    @property
    def counterpart(self) -> str:
        """Id of the same program in PyTorch, where there is one: ``"digits_mlp/adamw"`` of `digits_mlp_keras/adamw`."""
        return f"{self.script.stem.removesuffix(f'_{self.framework}')}/{self.name}"


def fault_classes() -> dict[str, FaultClass]:
    """All classes by name."""
    data = tomllib.loads((HERE / "causes.toml").read_text(encoding="utf-8"))
    return {name: FaultClass(name, **{**fields, "causes": tuple(fields["causes"])}) for name, fields in data.items()}


def drawn_halves(classes: Iterable[FaultClass]) -> dict[str, str]:
    """The half of each class: in the order of the digests of the names of a draw, alternately one and the other."""
    halves: dict[str, str] = {}
    draws: dict[int, list[str]] = {}
    for each in classes:
        draws.setdefault(each.draw, []).append(each.name)
    for names in draws.values():
        order = sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
        halves.update((name, HALVES[position % 2]) for position, name in enumerate(order))
    return halves


def members() -> list[Member]:
    """Every program, by its id.

    Raises:
        ValueError: A declaration is wrong; the message names script and cure.
    """
    classes = fault_classes()
    found: list[Member] = []
    for half in HALVES:
        for script in sorted((PROGRAMS / half.replace("-", "_")).glob("*.py")):
            found += _declared(script, half, classes)
    return found


def _declared(script: Path, half: str, classes: Mapping[str, FaultClass]) -> Iterator[Member]:
    program = _literal(script)
    task, architecture = program["task"], program["architecture"]
    how = {"ranks": program.get("ranks", 1), "framework": program.get("framework", FRAMEWORKS[0])}
    if how["framework"] not in FRAMEWORKS:
        raise ValueError(f"{script}: the framework must be one of {FRAMEWORKS} but got '{how['framework']}'")
    for name, about in program["healthy"].items():
        yield Member(script, name, half, task, architecture, about, **how)
    for name, (fault, twin) in program["faults"].items():
        if fault not in classes or classes[fault].half != half:
            where = f"belongs to {classes[fault].half}" if fault in classes else "is not in causes.toml"
            raise ValueError(f"{script}: the fault class of '{name}' must be one of {half}, but '{fault}' {where}")
        if twin not in program["healthy"]:
            raise ValueError(f"{script}: the twin of '{name}' must be one of its healthy variants but got '{twin}'")
        yield Member(script, name, half, task, architecture, fault=classes[fault], twin=twin, **how)


def _literal(script: Path) -> dict[str, Any]:
    """The value of ``PROGRAM``, without running the script."""
    for node in ast.parse(script.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["PROGRAM"]:
            program: dict[str, Any] = ast.literal_eval(node.value)
            return program
    raise ValueError(f"{script}: a program must assign a literal to PROGRAM; see programs/zoo.py")
