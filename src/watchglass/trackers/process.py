"""The process that follows a run and writes what is new for TensorBoard.

Started by command line with a socket as its standard input, as an evaluator is. It ends when the socket closes or its
parent has died, and first writes the rest. What it cannot write can be written later: ``watchglass export`` goes on.
"""

from __future__ import annotations

import sys
from contextlib import suppress

from watchglass import diagnose
from watchglass.config import ExporterConfig
from watchglass.errors import MissingFileError, NotARunError, RunExistsError, StoreError, WatchglassError, in_a_line
from watchglass.run import Run, open_run
from watchglass.supervise import Lifeline, begin_beside
from watchglass.trackers.tensorboard_export import TensorBoardExport

#: Writes for which the process of an earlier attempt may still hold the folder.
_ENDING_WRITES = 10


def main(arguments: list[str]) -> int:
    """Runs the process, with an :class:`ExporterConfig` as JSON on stdin. Returns its exit status.

    It is 0 at the end of the run, and if the reason was printed for which it cannot write.
    """
    if arguments:
        print("usage: python -m watchglass.trackers, with an ExporterConfig as a line of JSON", file=sys.stderr)
        return 2
    begin_beside()
    lifeline = Lifeline(0)
    line = lifeline.first_line().decode()
    if not line:
        return 0  # the starter has ended before it sent the configuration
    config, follower = ExporterConfig.from_line(line), None
    try:
        follower = _Follower(config)
        while lifeline.goes_on(config.settings.interval_s):
            follower.write(ended=False)
        follower.write(ended=True)
    except Exception as error:  # whatever it is, the training goes on, and a person can write the rest
        why = str(error) if isinstance(error, WatchglassError) else in_a_line(error)
        _say(config, f"no more data for TensorBoard: {why}")
    finally:
        if follower is not None:
            follower.close()
    return 0


def _say(config: ExporterConfig, what: str) -> None:
    with suppress(OSError):  # the reader of stderr has gone
        later = f"watchglass export {config.run} --to tensorboard -o {config.settings.folder}"
        print(f"watchglass: warning: {what}; to write it later: {later}", file=sys.stderr, flush=True)


class _Follower:
    """A run and its export, both opened as soon as they can be.

    Args:
        config: What to write.
    """

    def __init__(self, config: ExporterConfig) -> None:
        self._config = config
        self._run: Run | None = None
        self._export: TensorBoardExport | None = None
        self._refused = 0
        self._said = False

    def write(self, *, ended: bool) -> None:
        """Write what is new.

        Raises:
            WatchglassError: It never can be written; at the end, it could not be written.
        """
        try:
            self._write(ended=ended)
        except (MissingFileError, NotARunError):
            return  # the run begins with its first step
        except RunExistsError:
            self._refused += 1
            if ended or self._refused > _ENDING_WRITES:
                raise
        except StoreError as error:
            if ended:
                raise
            # Behind a record that is not whole TensorBoard reads no other, so the next attempt begins new files.
            self.close()
            if not self._said:
                self._said = True
                _say(self._config, f"nothing is written for TensorBoard until this is mended: {error}")

    def _write(self, *, ended: bool) -> None:
        settings = self._config.settings
        if self._run is None:
            self._run = open_run(self._config.run)
        else:
            self._run.refresh()
        if self._export is None:
            self._export = TensorBoardExport(
                self._run, settings.folder, diagnose.verdict, histograms=settings.histograms
            )
        self._export.write_new(ended=ended)

    def close(self) -> None:
        """Close the files."""
        if self._export is not None:
            with suppress(OSError):
                self._export.close()
            self._export = None
