"""Brings capture into the training process and its children; found first on PYTHONPATH, run by ``site`` at every start.

It removes itself from ``sys.path``, and from ``sys.modules`` in favour of the ``sitecustomize`` of the environment,
if there is one. One import hook remains: it waits for a framework, notifies :mod:`watchglass.session` after the import,
and removes itself. One function for ``atexit`` remains, too: it does nothing unless an exception ends the process or
watchglass has been imported.

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

#: Import names of the frameworks to wait for: the launcher has them from the table of those that have an adapter.
FRAMEWORKS = os.environ.get("WATCHGLASS_FRAMEWORKS", "").split()


class _FrameworkFinder:
    """Meta path finder that finds nothing itself; it adds a notice to the session to the import of a framework."""

    def __init__(self, names):
        self.waiting = set(names)

    def find_spec(self, name, path=None, target=None):
        """The spec that the other finders have for a framework, with our loader around theirs; None for the rest."""
        if name not in self.waiting:
            return None
        try:
            return self._around(name, path, target)
        except Exception as error:
            _warn(name, error)
            return None

    def _around(self, name, path, target):
        self.waiting.discard(name)  # before the other finders run: they may import, and so come back here
        if not self.waiting:
            sys.meta_path.remove(self)
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _TellingLoader(spec.loader, name)
                return spec
        return None


class _TellingLoader:
    """Runs the framework's own loader, gives its place back to it, then notifies the session."""

    def __init__(self, loader, name):
        self.loader = loader
        self.name = name

    def __getattr__(self, attribute):
        return getattr(self.loader, attribute)

    def create_module(self, spec):
        """The module that the framework's loader creates."""
        return self.loader.create_module(spec)

    def exec_module(self, module):
        """Import the framework as its own loader does, then notify the session."""
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        _notify_session(self.name)


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
    atexit.register(_report_failure, _take_first())
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
