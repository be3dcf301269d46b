"""Command: another program, called without a shell."""

from __future__ import annotations

import json
import os
import select
import shlex
import shutil
import subprocess

from watchglass.actions.action import Action
from watchglass.actions.courier import in_memory
from watchglass.actions.templates import check_template, fields_of, filled, variables_in
from watchglass.actions.variables import concealed
from watchglass.config import environment, parameter
from watchglass.errors import InvalidValueError, UndeliverableError
from watchglass.records import Event

#: Prefix of the variables that hold the event for the program.
VARIABLES = "WATCHGLASS_EVENT_"
#: Characters of a variable: the system takes 128 KiB at most, and a traceback may print a whole tensor.
_LONGEST_VARIABLE = 30_000
#: Bytes at the end of the program's stderr that are reported where it failed.
_LAST_WORDS = 1_000


class Command(Action):
    """Calls a program, ``scancel``, ``kubectl`` or your script, without a shell.

    Its arguments are templates with ``{run}``, ``{rule}``, ``{step}``, ``{finding_id}`` and others. Each template fills
    exactly one argument. ``{env.NAME}`` is an environment variable, such as the number of a job. All users of the
    machine can read arguments, so do not put secrets there. The program gets the event as JSON on its standard input,
    and its values in variables, ``WATCHGLASS_EVENT_RULE`` and so on. Exit status 0 is success; any other is retried.

    Example: Command:command=scancel {env.SLURM_JOB_ID},severity=error
    """

    reads_environment = False

    command: tuple[str, ...] = parameter((), help="program and arguments: a list, or one text that is split at spaces",
                                         split=False)  # fmt: skip
    retries: int = parameter(1, help="number of retries of a failed delivery", ge=0, le=100)

    def __post_init__(self) -> None:
        given: object = self.command
        if isinstance(given, str):
            try:
                self.command = tuple(shlex.split(given))
            except ValueError as error:
                raise InvalidValueError(f"Command: command cannot be split into words: {error}") from None
        super().__post_init__()
        if not self.command or not self.command[0]:
            raise InvalidValueError("Command needs command, as in command=scancel {env.SLURM_JOB_ID}")
        for word in self.command:
            check_template("Command: command", word, os.environ)

    def check(self) -> None:
        """Refuse a program that is not there."""
        program = self.command[0]
        if "{" not in program and shutil.which(program) is None:
            raise InvalidValueError(f"Command: there is no program {program!r} that could be called")

    def act(self, event: Event) -> None:
        """Call it."""
        fields = fields_of(event)
        words = [filled(word, fields, os.environ) for word in self.command]
        told_in_variables = {f"{VARIABLES}{name.upper()}": _plain(text) for name, text in fields.items()}
        environ = {**environment.for_program(os.environ), **told_in_variables}
        with in_memory(json.dumps(event.to_json()).encode()) as given:
            try:
                process = subprocess.Popen(
                    words, stdin=given, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environ
                )
            except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
                raise UndeliverableError(f"{self._concealed(words[0])} cannot be called: {error.strerror}") from None
            except ValueError:
                raise UndeliverableError("an argument contains a character that arguments cannot contain") from None
        last = self._concealed(_last_words(process))
        if process.returncode != 0:
            how = f"exit status {process.returncode}" if process.returncode > 0 else f"signal {-process.returncode}"
            program = self._concealed(os.path.basename(words[0]))
            raise ChildProcessError(f"{program} ended with {how}{': ' + last if last else ''}")

    def _concealed(self, text: str) -> str:
        """A text that may repeat an argument, in which what variables hold is replaced by their names."""
        names = [f"${name}" for word in self.command for name in variables_in(word)]
        return concealed(text, names, os.environ)


def _plain(text: str) -> str:
    return text.replace("\0", " ")[:_LONGEST_VARIABLE]


def _last_words(process: subprocess.Popen[bytes]) -> str:
    """The last line of what it writes to stderr; waits for its end, and for nothing that it leaves behind."""
    assert process.stderr is not None
    kept = b""
    with process.stderr as stream:
        os.set_blocking(stream.fileno(), False)
        ended = False
        while True:
            ready, _, _ = select.select([stream], [], [], 0.0 if ended else 0.05)
            more = os.read(stream.fileno(), 65536) if ready else b""
            kept = (kept + more)[-_LAST_WORDS:]
            if ended and not more:
                break
            if ready and not more:
                process.wait()
                break
            ended = process.poll() is not None
    lines = kept.decode("utf-8", "replace").strip().splitlines()
    return lines[-1].strip() if lines else ""
