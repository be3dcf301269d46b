"""Brings capture into the training process and its children; found first on PYTHONPATH, run by ``site`` at every start.

It removes itself from ``sys.path``, and from ``sys.modules`` in favour of the ``sitecustomize`` of the environment,
if there is one. One import hook remains: it waits for frameworks, notifies :mod:`watchglass.session` once one is
imported, and removes itself after the last. One function for ``atexit`` remains, too, for the launcher: it reports an
exception that ends the process, and the frameworks of a process that has recorded nothing.

Child processes may run other interpreters, so this file keeps to old syntax, imports nothing but built-in
modules and what ``site`` has imported already, and imports watchglass only when a framework is there.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="arg-type,import-untyped"
# watchglass must not disturb the start of an interpreter. Therefore:

import atexit
import gc
import os
import sys
import time
from _thread import get_ident

#: Import names of the frameworks to wait for, and after "|" of those that only a script can have watched: the launcher
#: has them from the table of those that have an adapter.
AWAITED, _, OTHERS = os.environ.get("WATCHGLASS_FRAMEWORKS", "").partition("|")
FRAMEWORKS = AWAITED.split()


class _FrameworkFinder:
    """Meta path finder that finds nothing itself; it notifies the session when a framework has been imported.

    Only an executed import counts. Packages that look for a framework (``find_spec``), imports that fail and modules
    that are loaded later all ask a finder, any number of times.
    """

    def __init__(self, names):
        self.waiting = set(names)
        # Threads that ask the other finders for a framework, with its name: these finders may ask this one again.
        self.asking = set()

    def find_spec(self, name, path=None, target=None):
        """The spec that the finders behind this one have for a framework; None for the rest."""
        self.look()
        asker = get_ident(), name
        if name not in self.waiting or asker in self.asking:
            return None
        self.asking.add(asker)
        try:
            return self._found(name, path, target)
        except Exception:
            return None  # the import system asks the same finders next, and meets the same error
        finally:
            self.asking.discard(asker)

    def _found(self, name, path, target):
        finders = list(sys.meta_path)
        for finder in finders[finders.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                _Execution.of(spec.loader, name, self)
                return spec
        return None

    def look(self):
        """Notice a framework that was imported past this finder, by another one in front of it or by a loader."""
        for name in tuple(self.waiting):
            module = sys.modules.get(name)
            # Any access to a module that is loaded later would load it.
            if module is not None and type(module).__getattribute__ is type(sys).__getattribute__:
                spec = getattr(module, "__spec__", None)
                if spec is not None and not getattr(spec, "_initializing", False) and not _is_executing(module):
                    self.imported(name)

    def imported(self, name):
        """A framework has been imported: notify the session, once."""
        if name in self.waiting:
            self.waiting.discard(name)
            if not self.waiting and self in sys.meta_path:
                sys.meta_path.remove(self)
            _notify_session(name)


class _Execution:
    """Stands for ``exec_module`` on the loader of a framework until it has succeeded; then notifies the finder.

    An attribute of the loader itself, so that whatever looks at the loader, or wraps it, sees its own class.
    """

    def __init__(self, loader, name, finder):
        self.loader, self.name, self.finder = loader, name, finder
        self.execute = loader.exec_module

    @classmethod
    def of(cls, loader, name, finder):
        """Put one on a loader; a loader that cannot have it is noticed by :meth:`_FrameworkFinder.look`."""
        if hasattr(loader, "__dict__") and not isinstance(loader, type) and "exec_module" not in vars(loader):
            loader.exec_module = cls(loader, name, finder)

    def __call__(self, module):
        """Execute the module as its loader does."""
        self.execute(module)
        if module.__name__ == self.name:  # the loader of an archive loads many
            vars(self.loader).pop("exec_module", None)
            self.finder.imported(self.name)


def _is_executing(module):
    """Whether the code of a module is running in this thread, as in an import that is written out by hand."""
    frame = sys._getframe().f_back
    while frame and not (frame.f_globals is vars(module) and frame.f_code.co_name == "<module>"):
        frame = frame.f_back
    return frame is not None


def _notify_session(name):
    """Call the session. Even if it fails, the import of the framework has succeeded."""
    # Imported modules stay, and a garbage collection would visit all objects of the framework: a tenth of a second.
    collects = gc.isenabled()
    gc.disable()
    try:
        _call_session(name, getattr(time, "perf_counter", time.time)())
    finally:
        if collects:
            gc.enable()


def _call_session(name, begun_s):
    try:
        from watchglass.session import on_framework_imported
    except ImportError as error:
        # An interpreter without watchglass is a child we do not know how to watch: silence is right there.
        if getattr(error, "name", "") != "watchglass":
            _warn(name, error)
        return
    except Exception as error:
        _warn(name, error)
        return
    try:
        on_framework_imported(name, begun_s)
    except Exception as error:
        if os.environ.get("WATCHGLASS_STRICT") == "1":
            raise
        _warn(name, error)


def _take_first():
    """The process id of this process where it is the first of its launch, else None; marks it so for the children."""
    variable = os.environ.get("WATCHGLASS_FAILURES", "")
    if variable[:1] != "+":
        return None
    os.environ["WATCHGLASS_FAILURES"] = variable[1:]
    return os.getpid()


def _report_end(first):
    """Report to the launcher how this process ends, and what it has seen if it has recorded nothing."""
    _report_failure(first)
    try:
        _report_sighting(first)
    except Exception:
        return  # the verdict says less


def _report_sighting(first):
    """Report the frameworks of a process that has recorded no step; of helpers only those with a framework."""
    path = os.environ.get("WATCHGLASS_FAILURES", "").lstrip("+")
    names = [name for name in FRAMEWORKS + OTHERS.split() if sys.modules.get(name) is not None]
    if not path or not (names or first == os.getpid()):
        return
    session = sys.modules.get("watchglass.session")
    recorded, backwards = session.recorded() if session is not None else (False, 0)
    if not recorded:
        line = '{"sighting": {"frameworks": [%s], "backwards": %d}}\n'
        # The launcher has made the file, and deletes it at its end.
        file = os.open(path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0))
        try:
            os.write(file, (line % (", ".join(map('"{}"'.format, names)), backwards)).encode())
        finally:
            os.close(file)


def _report_failure(first):
    """Report to the launcher the uncaught exception that ends this process; Python has printed it."""
    if getattr(sys, "last_value", None) is None and "watchglass.session" not in sys.modules:
        return
    try:
        from watchglass.session import on_failure

        on_failure(first == os.getpid())
    except Exception as error:
        if getattr(error, "name", "") != "watchglass":
            _warn("the failure", error)


def _warn(name, error):
    """One line on stderr; a closed stderr is no reason to fail."""
    try:
        text = "watchglass: warning: %s is not captured: %s: %s\n"
        sys.stderr.write(text % (name, type(error).__name__, str(error).replace("\n", " ")))
    except Exception:
        return


def _switched_off():
    """The same answer as ``config.environment.disabled``, which would have to be imported."""
    return os.environ.get("WATCHGLASS", "1").strip().lower() in ("0", "false", "off", "no")


def _install():
    if _switched_off() or not os.environ.get("WATCHGLASS_SESSION"):
        return
    atexit.register(_report_end, _take_first())
    missing = [name for name in FRAMEWORKS if name not in sys.modules]
    for name in FRAMEWORKS:
        if name not in missing:  # a .pth file was earlier than we
            _notify_session(name)
    if missing:
        sys.meta_path.insert(0, _FrameworkFinder(missing))


def _leave_path():
    """Take this folder off ``sys.path``; it stays in PYTHONPATH, for child processes."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    sys.path_importer_cache.pop(here, None)


def _hand_over():
    """Run the environment's own ``sitecustomize`` in our place, or end as if there were none.

    The import system lets a module be replaced in ``sys.modules`` while it is being imported. Whatever comes out of
    this import is what would have come out without us: ``site`` takes "no module named sitecustomize" for a no.
    """
    sys.modules.pop("sitecustomize", None)
    __import__("sitecustomize")


try:
    _leave_path()
    _install()
except Exception as failure:
    _warn("the training run", failure)
_hand_over()
