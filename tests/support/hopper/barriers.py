"""mbarriers in shared memory, and the hardware's sixteen named barriers."""

from __future__ import annotations

from dataclasses import dataclass

from support.hopper.machine import GpuError, machine

_MOST_NAMED = 16


@dataclass(eq=False)
class MBarrier:
    """A phase ends when as many have arrived as were expected and all bytes have."""

    count: int
    name: str
    phase: int = 0
    arrived: int = 0
    missing_bytes: int = 0

    def arrive(self, count: int = 1, expected_bytes: int = 0) -> None:
        """So many arrivals, and the bytes that this phase brings."""
        self.arrived += count
        self.missing_bytes += expected_bytes
        if self.arrived > self.count:
            raise GpuError(f"{self.name}: {self.arrived} arrivals in a phase of {self.count}")
        self._end_phase()

    def bring(self, size: int) -> None:
        """Bytes of a copy."""
        self.missing_bytes -= size
        self._end_phase()

    def wait(self, parity: int) -> None:
        """Until a phase of this parity has ended: the current one has the other parity."""
        words = f"{self.name}, {self.arrived} of {self.count}, {self.missing_bytes} bytes missing"
        machine().wait(lambda: self.phase % 2 != parity, words)

    def _end_phase(self) -> None:
        if self.arrived == self.count and self.missing_bytes == 0:
            self.phase += 1
            self.arrived = 0
        elif self.arrived == self.count and self.missing_bytes < 0:
            raise GpuError(f"{self.name}: {-self.missing_bytes} bytes more than expected")


@dataclass(eq=False)
class NamedBarrier:
    """Threads meet: all that arrive with `bar.sync` wait, those of `bar.arrive` do not."""

    number: int
    expected: int = 0
    arrived: int = 0
    round: int = 0

    def arrive(self, threads: int, expected: int, *, waits: bool) -> None:
        """Of a partition's threads; expected: in all, as the instruction says."""
        if not 0 <= self.number < _MOST_NAMED:
            raise GpuError(f"there is no named barrier {self.number}")
        if self.arrived and expected != self.expected:
            raise GpuError(
                f"barrier {self.number} is for {self.expected} threads and for {expected}"
            )
        self.expected = expected
        self.arrived += threads
        if self.arrived > expected:
            raise GpuError(f"barrier {self.number}: {self.arrived} threads, {expected} expected")
        mine = self.round
        if self.arrived == expected:
            self.arrived = 0
            self.round += 1
        if waits:
            words = f"barrier {self.number}, {self.arrived} of {expected} threads"
            machine().wait(lambda: self.round > mine, words)
