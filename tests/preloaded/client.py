"""Takes the place of ``python``: asks a server for a process that runs its arguments, and lives and dies with it.

What a server does not do (flags of the interpreter other than ``-u``) is run by the real interpreter.
It reads which servers there are from the file of JSON beside it.
"""

# mypy: ignore-errors

import json
import os
import signal
import socket
import sys

#: Where ``sitecustomize`` of watchglass lies, which imports it.
_BOOTSTRAP = os.path.join("watchglass", "launch", "bootstrap")

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def _request(arguments):
    unbuffered = False
    rest = list(arguments)
    while rest and rest[0] == "-u":
        unbuffered = True
        rest.pop(0)
    if len(rest) > 1 and rest[0] == "-m":
        kind, target, rest = "module", rest[1], rest[2:]
    elif len(rest) > 1 and rest[0] == "-c":
        kind, target, rest = "text", rest[1], rest[2:]
    elif rest and not rest[0].startswith("-") and os.path.isfile(rest[0]):
        kind, target, rest = "script", rest[0], rest[1:]
    else:
        return None
    return {
        "executable": os.path.abspath(sys.argv[0]),
        "arguments": arguments,
        "unbuffered": unbuffered,
        "kind": kind,
        "target": target,
        "rest": rest,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "umask": _umask(),
    }


def _is_open(number, ours):
    try:
        os.fstat(number)
    except OSError:
        return False  # that of the listing
    return number != ours


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _server(request, servers):
    """The socket of the server for the first package of a module, or of the one for scripts, watched or not."""
    environment = request["environment"]
    watched = _BOOTSTRAP in environment.get("PYTHONPATH", "") and environment.get("WATCHGLASS", "1") == "1"
    package = request["target"].split(".")[0] if request["kind"] == "module" else ""
    return servers[package if package == "watchglass" else "watched" if watched else ""]


def main():
    arguments = sys.argv[1:]
    with open(os.path.abspath(sys.argv[0]) + ".json") as file:
        settings = json.load(file)
    request = _request(arguments)
    if request is None:
        os.execv(settings["python"], [settings["python"], *arguments])
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)  # until there is a process to pass them on to
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(_server(request, settings["servers"]))
    # All that this process has inherited, under the same numbers, for multiprocessing passes pipes on that way.
    files = [number for number in map(int, os.listdir("/proc/self/fd")) if _is_open(number, connection.fileno())]
    text = json.dumps({**request, "files": files}).encode() + b"\n"
    sent = socket.send_fds(connection, [text], files)
    connection.sendall(text[sent:])
    answers = connection.makefile("rb")  # both may be there at once: the process may have ended by now
    pid = int(answers.readline())
    for number in PASSED_ON:
        signal.signal(number, lambda number, _: os.kill(pid, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    status = int(answers.readline() or -signal.SIGKILL)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -status)
    os._exit(status)


main()
