"""Programs of a launch and their partitions as threads, of which one runs at a time."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_SWITCH = 0.25  # how often a task is left where it need not wait
_DELIVER = 0.3  # how often a copy arrives between two turns


class GpuError(AssertionError):
    """What a GPU would have answered by a wrong result, a hang or a fault."""


class _Stopped(BaseException):
    """Ends a thread whose launch has failed."""


@dataclass(eq=False)
class Task:
    """One partition of one program."""

    name: str
    work: Callable[[], None]
    program: Any  # see kernels.Program
    warps: int
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    is_ready: Callable[[], bool] = lambda: True
    waits_for: str = ""
    is_done: bool = False
    products: list[Any] = field(default_factory=list)  # issued, not waited for; see products.py
    stores: list[Any] = field(default_factory=list)  # the same of TMA; see copies.py
    unfenced: list[Any] = field(default_factory=list)  # marks of generic writes; see shared.py


class Machine:
    """Runs tasks in an order drawn from a seed; copies arrive when nobody expects them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.copies: list[Callable[[], None]] = []  # under way; called when they arrive
        self.current: Task = None  # type: ignore[assignment]
        self._tasks: list[Task] = []
        self._back = threading.Semaphore(0)
        self._failure: BaseException | None = None

    def start(self, task: Task) -> None:
        """Let a task run, from the next turn on."""
        self._tasks.append(task)
        threading.Thread(target=self._thread, args=(task,), daemon=True).start()

    def run(self) -> None:
        """All tasks to their end; raises what one of them raised, or GpuError if all wait."""
        while self._failure is None and not all(task.is_done for task in self._tasks):
            ready = [task for task in self._tasks if not task.is_done and task.is_ready()]
            if self.copies and (not ready or self.random.random() < _DELIVER):
                self.copies.pop(self.random.randrange(len(self.copies)))()
            elif ready:
                self._resume(self.random.choice(ready))
            else:
                waiting = (f"{t.name}: {t.waits_for}" for t in self._tasks if not t.is_done)
                self._failure = GpuError("all wait for each other\n" + "\n".join(waiting))
        if self._failure is not None:
            for task in self._tasks:
                if not task.is_done:
                    self._resume(task)
            raise self._failure
        if self.copies:
            raise GpuError("a copy was under way when the kernel ended")

    def wait(self, is_ready: Callable[[], bool], waits_for: str) -> None:
        """The current task goes on when `is_ready` says so."""
        task = self.current
        task.is_ready, task.waits_for = is_ready, waits_for
        self._back.release()
        task.turn.acquire()
        if self._failure is not None:
            raise _Stopped
        task.is_ready = lambda: True

    def maybe_switch(self) -> None:
        """Another task's turn, perhaps."""
        if self.random.random() < _SWITCH:
            self.wait(lambda: True, "its turn")

    def _resume(self, task: Task) -> None:
        self.current = task
        task.turn.release()
        self._back.acquire()

    def _thread(self, task: Task) -> None:
        task.turn.acquire()
        try:
            if self._failure is None:
                task.work()
        except _Stopped:
            pass
        except BaseException as failure:
            self._failure = self._failure or failure
        task.is_done = True
        self._back.release()


_machines: list[Machine] = []


def machine() -> Machine:
    """The one that runs."""
    return _machines[-1]


def run_on(running: Machine) -> None:
    """All tasks of a machine."""
    _machines.append(running)
    try:
        running.run()
    finally:
        _machines.pop()
