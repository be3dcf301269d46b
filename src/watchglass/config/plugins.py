"""Custom classes (rules and actions): how they declare parameters, and how they are named."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from watchglass.config.parameters import describe, parameter, suggest, validate
from watchglass.errors import InvalidValueError, MissingFileError, PluginFileError, UnknownNameError, WatchglassError

T = TypeVar("T")

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from typing_extensions import dataclass_transform as dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Callable[[T], T]:
        """Replaces typing.dataclass_transform, which Python 3.10 lacks; only type checkers use it."""
        return lambda cls: cls


class Contract(NamedTuple):
    """The requirements for a class in a user's file."""

    base: type  #: The class that it derives from.
    word: str  #: Its kind in messages, ``"rule"``.
    name: str  #: The name under which users import the base, ``"watchglass.Rule"``.
    method: str  #: The method that it must have, ``"check(self, view)"``.


class Plugin:
    """The base of rules and actions. Subclasses become keyword-only dataclasses with validated parameters."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _with_parameters(cls)

    def __post_init__(self) -> None:
        validate(self)

    @property
    def name(self) -> str:
        """Name of its class."""
        return type(self).__name__


def _with_parameters(cls: type[Any]) -> None:
    """Make a class a keyword-only dataclass whose annotated attributes are parameters.

    A bare ``threshold: float = 1.0`` is a parameter too, so that it is validated like the others.
    """
    for name, annotation in inspect.get_annotations(cls).items():
        default = cls.__dict__.get(name, dataclasses.MISSING)
        plain = default is not dataclasses.MISSING and not isinstance(default, dataclasses.Field)
        if plain and "ClassVar" not in str(annotation):
            setattr(cls, name, parameter(default))
    dataclasses.dataclass(kw_only=True, eq=False)(cls)


def built(cls: type[T], name: str, parameters: Mapping[str, Any]) -> T:
    """A new instance of a class.

    Args:
        cls: The class.
        name: The name that the user wrote.
        parameters: The given parameters.

    Raises:
        UnknownNameError: An unknown parameter, with a similar name.
        InvalidValueError: A value of the wrong type or outside its limits.
        PluginFileError: Its constructor raises something else.
    """
    known = [info.name for info in describe(cls)]
    for given in parameters:
        if given not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise UnknownNameError(f'{cls.__name__} has no parameter "{given}"{suggest(given, known)}; {has}')
    with faults_of(name, "built"):
        return cls(**parameters)


@contextmanager
def faults_of(name: str, verb: str) -> Iterator[None]:
    """A context that reports an exception of a user's code in one line, as an error of its file."""
    try:
        yield
    except WatchglassError:
        raise
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise PluginFileError(f"{name} cannot be {verb}: {text}") from error


def names_file(name: str) -> bool:
    """Whether a name is that of a file, ``"my_rules.py:MyRule"`` or ``"my_rules.py"``, and no built-in one."""
    return ":" in name or name.endswith(".py")


def file_and_class(name: str) -> tuple[str, str]:
    """File and class of a name, ``("my_rules.py", "MyRule")``; the class may be omitted, and is then ""."""
    path, colon, class_name = name.rpartition(":")
    if not colon or (class_name.endswith(".py") and not class_name.isidentifier()):
        return name, ""
    return path, class_name


def seen_from(name: str, folder: str | os.PathLike[str]) -> str:
    """A name that means the same in every working directory: where it is that of a file, its path is absolute.

    Args:
        name: What the user wrote, ``"my_actions.py:MyAction"``; a built-in name stays as it is.
        folder: Where a relative path begins.
    """
    in_file = file_and_class(name)[0].endswith(".py")
    # ".." stays: behind a symbolic link it leads elsewhere than the text suggests.
    return os.path.join(os.getcwd(), folder, name) if in_file else name


def find_class(name: str, built_in: Mapping[str, str], contract: Contract, *, also: Iterable[str] = ()) -> type[Any]:
    """The class that a name means: a built-in one, one of an installed package, or one in a file.

    Args:
        name: The name that the user wrote, ``"DeadRelu"`` or ``"path/to/file.py:MyRule"``.
        built_in: The modules of the built-in ones, imported on use.
        contract: The requirements.
        also: Further names to suggest.

    Raises:
        UnknownNameError: No such class, or none in the file; the message suggests a similar name.
        MissingFileError, PluginFileError: See :func:`class_from_file`.
    """
    if names_file(name):
        return class_from_file(name, contract)
    module = built_in.get(name)
    if module is None:
        offered = installed(contract)
        if name in offered:
            return _class_of_package(name, offered[name], contract)
        word, near = contract.word, suggest(name, [*built_in, *also, *offered])
        raise UnknownNameError(
            f'there is no {word} "{name}"{near}; to list them: watchglass {word}s; a custom {word} is named by file '
            f'and class: "my_{word}s.py:My{word.title()}"'
        )
    cls: type[Any] = getattr(importlib.import_module(module), name)
    return cls


def installed(contract: Contract) -> dict[str, list[EntryPoint]]:
    """The classes that installed packages offer, by name: entry points of ``watchglass.rules`` or ``.actions``."""
    from importlib.metadata import entry_points  # 10 ms, which a launcher with built-in rules need not spend

    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=f"watchglass.{contract.word}s"):
        found.setdefault(point.name, []).append(point)
    return found


def _class_of_package(name: str, points: list[EntryPoint], contract: Contract) -> type:
    packages = sorted({point.dist.name if point.dist is not None else point.module for point in points})
    if len(packages) > 1:
        raise PluginFileError(
            f"several packages offer {contract.word} {name}: {', '.join(packages)}; uninstall all but one"
        )
    with faults_of(f"{contract.word} {name} of package {packages[0]}", "imported"):
        return _checked(points[0].load(), name, contract)


def name_of(cls: type[Any], contract: Contract) -> str:
    """The name by which another process finds a class: a built-in or installed one, or its file and name.

    Raises:
        InvalidValueError: It is defined in the running script, which another process cannot import.
    """
    if cls.__module__.startswith("watchglass."):
        return cls.__name__
    if cls.__module__ == "__main__":
        word = contract.word
        raise InvalidValueError(
            f"{word} {cls.__name__} is defined in the running script, but another process must import it; move it to a "
            f'file and use {word}s=["my_{word}s.py:{cls.__name__}"]'
        )
    value = f"{cls.__module__}:{cls.__qualname__}"
    for name, points in installed(contract).items():
        if any(point.value == value for point in points):
            return name
    return f"{inspect.getsourcefile(cls)}:{cls.__name__}"


def class_from_file(name: str, contract: Contract) -> type:
    """The class that ``"path/to/file.py:MyRule"`` names; the class may be omitted where the file has only one.

    Raises:
        MissingFileError: No such file.
        UnknownNameError: No such class in the file; the message has the near name.
        PluginFileError: The file cannot be imported, or the class does not fulfil the contract.
    """
    path, class_name = file_and_class(name)
    module = _import_file(path, contract.word)
    found = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, contract.base) and value.__module__ == module.__name__
    }
    if not class_name:
        if len(found) == 1:
            return next(iter(found.values()))
        raise PluginFileError(f'{path} has {len(found)} {contract.word}s; name the class: "{path}:ClassName"')
    cls = getattr(module, class_name, None)
    if cls is None:
        raise UnknownNameError(f'{path} has no class "{class_name}"{suggest(class_name, found)}')
    return _checked(cls, name, contract)


def _checked(cls: object, name: str, contract: Contract) -> type:
    if not (isinstance(cls, type) and issubclass(cls, contract.base)):
        an = "an" if contract.word[0] in "aeiou" else "a"
        raise PluginFileError(
            f"{name} is not {an} {contract.word}; {an} {contract.word} is a class that derives from {contract.name}"
        )
    if inspect.isabstract(cls):
        raise PluginFileError(f"{name} has no method {contract.method}; every {contract.word} needs one")
    return cls


def _import_file(path: str, word: str) -> ModuleType:
    file = Path(path)
    if not file.is_file():
        raise MissingFileError(
            f'there is no {word} file "{path}"; give an absolute path, or one relative to {Path.cwd()}'
        )
    # The name is made from path and time of change: two files called rules.py do not collide, and an edited file is
    # imported again in a notebook. It has to be in sys.modules for dataclasses to resolve the annotations.
    stamp = f"{file.resolve()}\0{file.stat().st_mtime_ns}"
    name = f"watchglass_plugin_{hashlib.sha256(stamp.encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    loader = importlib.util.spec_from_file_location(name, file)
    if loader is None or loader.loader is None:
        raise PluginFileError(f"{path} cannot be imported: its name must end in .py")
    module = importlib.util.module_from_spec(loader)
    sys.modules[name] = module
    try:
        loader.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt):
            raise
        where = f"line {error.lineno}, " if isinstance(error, SyntaxError) and error.lineno else ""
        text = " ".join(str(error).split())
        raise PluginFileError(f"{path} cannot be imported: {where}{type(error).__name__}: {text}") from error
    return module
