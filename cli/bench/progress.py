"""How far a run is: a bar on a terminal, else lines that are flushed; and a watchdog."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from cmask.cli.bench.rows import Group
from cmask.cli.report import console

if TYPE_CHECKING:
    from rich.progress import Progress

SILENCE_S = 240  # after which a kernel is taken to hang
HANGS = 3  # its exit code


class Reporter:
    """Results on stdout; on stderr what is being done.

    total   masks
    render  a group -> its lines
    """

    def __init__(self, total: int, render: Callable[[Group], list[str]]) -> None:
        self._total, self._render = total, render
        self._watchdog: Watchdog | None = None
        self._bar: Progress | None = None

    def __enter__(self) -> Reporter:
        err = console(stderr=True)
        if err.is_terminal:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            said = TextColumn("{task.description}", markup=False)  # faults hold brackets
            self._bar = Progress(said, BarColumn(), MofNCompleteColumn(), console=err)
            self._bar.add_task("", total=self._total)
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._watchdog is not None:
            self._watchdog.stop()
        if self._bar is not None:
            self._bar.stop()

    def watch(self) -> None:
        """From now on, end the process once nothing was said for `SILENCE_S`."""
        self._watchdog = Watchdog(SILENCE_S)

    def start(self, name: str) -> None:
        """The next mask."""
        if self._bar is not None:
            started = self._bar.tasks[0].description != ""
            self._bar.update(self._bar.task_ids[0], advance=int(started), description=name)
        self.note(name)

    def note(self, text: str) -> None:
        """A step that was made: the device has answered."""
        if self._watchdog is not None:
            self._watchdog.is_alive()
        if self._bar is None:
            _print(text, sys.stderr.write, sys.stderr.flush)
        else:
            name = self._bar.tasks[0].description.partition("  ")[0]
            step = text.strip()[:60]
            said = name if step == name else f"{name}  {step}"
            self._bar.update(self._bar.task_ids[0], description=said)

    def show(self, group: Group) -> None:
        """The results of one mask in one direction."""
        self.say("\n".join(self._render(group)))

    def say(self, text: str) -> None:
        """Lines on stdout, above the bar if both are on one terminal."""
        if self._bar is not None and console().is_terminal:
            self._bar.console.print(text)
        else:
            _print(text, sys.stdout.write, sys.stdout.flush)


def _print(text: str, write: Callable[[str], object], flush: Callable[[], object]) -> None:
    write(text + "\n")
    flush()


class Watchdog:
    """Ends the process, with all threads' tracebacks, when nobody said `is_alive` for long.

    Where a hanging call keeps Python's lock, faulthandler ends it 30 s later, with exit code 1.
    """

    def __init__(self, silence_s: float) -> None:
        self._silence_s, self._stopped = silence_s, threading.Event()
        self.is_alive()
        threading.Thread(target=self._watch, daemon=True).start()

    def is_alive(self) -> None:
        """Something has just come to an end."""
        self._heard = time.monotonic()
        faulthandler.dump_traceback_later(self._silence_s + 30, exit=True)

    def stop(self) -> None:
        """Watch no longer."""
        self._stopped.set()
        faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        while not self._stopped.wait(min(1.0, self._silence_s / 4)):
            if time.monotonic() - self._heard > self._silence_s:
                faulthandler.dump_traceback(all_threads=True)
                sys.stderr.write(f"nothing happened for {self._silence_s:g} s: given up\n")
                sys.stderr.flush()
                os._exit(HANGS)
