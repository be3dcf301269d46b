"""Imports modules once; then forks a process for each request, which runs a script as a fresh interpreter would.

Started as ``python server.py [[SOCKET, [MODULE, ...]], ...]`` by :class:`preloaded.interpreter.Preloaded`, and ended by
closing its standard input. Single-threaded, since only then a fork is safe. Of several sockets each but the first is
served by a child of the server before, which has imported more. A request is one JSON object and the open files of the
process; the answer is its pid at once, and how it ended when it has.
"""

# mypy: ignore-errors

import atexit
import contextlib
import fcntl
import gc
import importlib
import io
import json
import multiprocessing
import os
import random
import runpy
import selectors
import signal
import socket
import sys
import threading
import types

_LONGEST_REQUEST = 1 << 20
_MOST_FILES = 250


class Server:
    """Accepts requests until its standard input is closed; :meth:`serve` returns in each forked process, too."""

    def __init__(self, address):
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(64)
        self._clients = {}  # connection -> pid
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ, self._end)
        self._ended = False

    def serve(self):
        """The request that this process is to run; None in the server, when it has ended."""
        while not self._ended:
            for key, _ in self._selector.select():
                request = key.data(key.fileobj)
                if request is not None:
                    return request
        for connection in list(self._clients):
            self._hung_up(connection)
        return None

    def _end(self, _):
        self._ended = True

    def _accept(self, listener):
        connection, _ = listener.accept()
        text, files, _, _ = socket.recv_fds(connection, _LONGEST_REQUEST, _MOST_FILES)
        while text and not text.endswith(b"\n"):
            text += connection.recv(_LONGEST_REQUEST)
        if not text:
            connection.close()
            return None
        pid = os.fork()
        if pid == 0:
            self._leave()
            connection.close()
            return json.loads(text), files
        for file in files:
            os.close(file)
        self._clients[connection] = pid
        self._selector.register(connection, selectors.EVENT_READ, self._hung_up)
        self._selector.register(
            os.pidfd_open(pid), selectors.EVENT_READ, lambda file: self._exited(connection, file, pid)
        )
        with contextlib.suppress(OSError):  # the client was killed meanwhile: it hangs up next
            connection.sendall(f"{pid}\n".encode())
        return None

    def _leave(self):
        """In a forked process: keep nothing of the server's."""
        for key in list(self._selector.get_map().values()):
            if key.fileobj is not self._listener and hasattr(key.fileobj, "close"):
                key.fileobj.close()
            elif isinstance(key.fileobj, int) and key.fileobj > 2:
                os.close(key.fileobj)
        self._listener.close()
        self._selector.close()

    def _hung_up(self, connection):
        """The client is dead, as after a kill -9: so is its process."""
        if connection not in self._clients:
            return  # its process has ended too, which was handled among the same events
        pid = self._clients.pop(connection)
        self._selector.unregister(connection)
        connection.close()
        os.kill(pid, signal.SIGKILL)

    def _exited(self, connection, file, pid):
        self._selector.unregister(file)
        _, status = os.waitpid(pid, 0)
        os.close(file)
        if self._clients.pop(connection, None) is None:
            return  # the client has hung up
        self._selector.unregister(connection)
        try:
            connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        except OSError:
            pass  # it died meanwhile
        connection.close()


def become(request, files):
    """Make this process look like a fresh interpreter that was started with the request's arguments."""
    above = [fcntl.fcntl(file, fcntl.F_DUPFD, 1000) for file in files]
    for file in files:
        os.close(file)
    for number, file in zip(request["files"], above, strict=True):
        os.dup2(file, number)
        os.close(file)
    unbuffered = request["unbuffered"] or bool(request["environment"].get("PYTHONUNBUFFERED"))
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8")
    sys.stdout = sys.__stdout__ = _writer(1, "strict", os.isatty(1), unbuffered)
    sys.stderr = sys.__stderr__ = _writer(2, "backslashreplace", True, unbuffered)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.umask(request["umask"])
    os.chdir(request["folder"])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    sys.executable = request["executable"]
    multiprocessing.set_executable(sys.executable)
    sys.orig_argv = [request["executable"], *request["arguments"]]
    python_path = [entry for entry in request["environment"].get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:0] = python_path
    importlib.invalidate_caches()
    if python_path:
        try:
            sys.modules.pop("sitecustomize", None)
            __import__("sitecustomize")
        except ImportError as error:
            if error.name != "sitecustomize":
                raise


def _writer(number, errors, lines, unbuffered):
    file = io.BufferedWriter(io.FileIO(number, "w", closefd=False))
    return io.TextIOWrapper(file, "utf-8", errors, line_buffering=lines, write_through=unbuffered)


def run(request):
    """Run the script or module and return its exit status.

    An exception is shown as the interpreter shows it, without frames of this file.
    """
    kind, target = request["kind"], request["target"]
    module = types.ModuleType("__main__")
    module.__dict__.update(__builtins__=__builtins__, __spec__=None)
    sys.modules["__main__"] = module
    sys.argv = ["-c" if kind == "text" else target, *request["rest"]]
    try:
        if kind == "module":
            sys.path.insert(0, os.getcwd())
            runpy.run_module(target, run_name="__main__", alter_sys=True)
            return 0
        if kind == "script":
            sys.path.insert(0, os.path.dirname(os.path.realpath(target)))
            path = os.path.abspath(target)
            module.__dict__.update(__file__=path, __cached__=None)
            with open(path, "rb") as file:
                code = compile(file.read(), path, "exec", dont_inherit=True)
        else:
            sys.path.insert(0, "")
            code = compile(target, "<string>", "exec", dont_inherit=True)
        # A function's globals live as long as the module, as they do in an interpreter that runs a script.
        exec(code, module.__dict__)  # noqa: S102  what an interpreter does
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        raise  # the interpreter prints what it is, which is seen by who looks for it
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and _ours(trace.tb_frame.f_code.co_filename):
            trace = trace.tb_next
        # As the interpreter leaves it for debuggers and for functions that run at exit.
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error.with_traceback(trace), trace
        sys.last_exc = sys.last_value
        sys.excepthook(type(error), error, trace)
        if isinstance(error, KeyboardInterrupt):
            _end_by.append(signal.SIGINT)
        return 1
    return 0


def end(status):
    """End as the interpreter does, but leave it to the system to give back what the imported modules hold.

    Functions at exit are called and the script's globals go. To take PyTorch apart would take longer than most scripts.
    """
    for step in (threading._shutdown, atexit._run_exitfuncs, vars(sys.modules["__main__"]).clear, gc.collect):
        try:
            step()
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # closed, by the script or by who reads it
            status = status or 120
    os._exit(status)


def _ours(filename):
    return filename == __file__ or filename == runpy.__file__ or filename.startswith("<frozen ")


#: The signal that ends this process when everything else has been done at its exit.
_end_by = []


def _end_by_signal():
    for number in _end_by:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def started(servers):
    """A server that has imported its modules, after those of the next ones are ready; and the next one's pid, or None.

    Each is forked from the one before.
    """
    (address, modules), *others = servers
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # or the first collection of each process would copy all that the modules have made
    child = None
    if others:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            server, child = started(others)
            os.write(writer, b"1")
            os.close(writer)
            return server, child
        os.close(writer)
        if not os.read(reader, 1):
            sys.exit(f"the server ended while it imported {others}")
        os.close(reader)
    return Server(address), child


def main():
    """Serve; then, in a forked process, run what was asked for and end as an interpreter does."""
    first = os.getpid()
    del sys.path[0]  # the folder of this file
    server, child = started(json.loads(sys.argv[1]))
    if os.getpid() == first:
        print("ready", flush=True)
    job = server.serve()
    del server
    if job is not None:
        atexit.register(_end_by_signal)  # first registered, so called last
        request, files = job
        become(request, files)
        end(run(request))
    elif child is not None:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
