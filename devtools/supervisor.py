"""Starts children, notices the ones that die, and stops every one in order whatever ends us."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from types import FrameType, TracebackType
from typing import Any, Protocol, Self

from devtools.child import Child, ChildFailed, Echo, Program, describe_exit
from devtools.interrupts import SIGNALS, StopRequested, interrupt

# Who takes work in stops first; who others need stops last. Roles not named here stop before all.
STOP_ORDER = ("web", "relay", "worker", "flower", "redis", "rabbitmq", "postgres")


class Service(Protocol):
    """What a supervisor can own: a child process, or a server that has one."""

    @property
    def name(self) -> str: ...
    @property
    def role(self) -> str: ...
    @property
    def has_failed(self) -> bool: ...
    @property
    def exit_code(self) -> int | None: ...
    def start(self) -> None: ...
    def stop(self) -> int | None: ...
    def kill(self) -> int | None: ...
    def tail(self, lines: int = 20) -> str: ...


class Supervisor:
    """Use it with ``with``: nothing it started outlives the block.

    SIGINT and SIGTERM end the block with StopRequested; the second one kills instead of stopping.
    Enter the block in the main thread: only there can signals be handled.
    """

    def __init__(self, echo: Echo | None = None) -> None:
        self.echo = echo
        self._services: dict[str, Service] = {}
        self._former_handlers: dict[signal.Signals, Any] = {}
        self._is_stopping = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._former_handlers = {
                number: signal.signal(number, self._on_signal) for number in SIGNALS
            }
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_stopping = True
        if isinstance(error, StopRequested):
            error.acknowledge()
        self._stop_all()
        for number, handler in self._former_handlers.items():
            signal.signal(number, handler)

    def start(self, program: Program) -> Child:
        child = Child(program, self.echo)
        self.add(child)
        return child

    def add(self, service: Service) -> None:
        """Starts it, and owns it from before it runs."""
        if service.name in self._services:
            raise ValueError(f"{service.name} is already supervised")
        self._services[service.name] = service
        service.start()

    def __getitem__(self, name: str) -> Service:
        return self._services[name]

    def names(self, role: str) -> list[str]:
        return [service.name for service in self._services.values() if service.role == role]

    def stop(self, *names: str) -> None:
        """Stops these together, and forgets them."""
        _all_at_once([self._services[name] for name in names], _stop)
        for name in names:
            del self._services[name]

    def kill(self, name: str) -> None:
        """SIGKILL, and forgets it."""
        self._services.pop(name).kill()

    def restart(self, *names: str) -> None:
        """Stops these together, then starts them again."""
        services = [self._services[name] for name in names]
        _all_at_once(services, _stop)
        for service in services:
            service.start()

    def failed(self) -> list[Service]:
        return [service for service in self._services.values() if service.has_failed]

    def raise_for_failed(self) -> None:
        for service in self.failed():
            raise failure_of(service)

    def wait_until(self, condition: Callable[[], bool], what: str, *, within_s: float) -> None:
        """Polls; ends early with an error when any service dies meanwhile."""
        deadline = time.monotonic() + within_s
        while not condition():
            self.raise_for_failed()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not within {within_s:g} s")
            time.sleep(0.1)

    def _stop_all(self) -> None:
        for _, group in groupby(sorted(self._services.values(), key=_stop_rank), key=_stop_rank):
            _all_at_once(list(group), _stop)
        self._services.clear()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            interrupt(number)
            return
        for service in list(self._services.values()):
            with suppress(Exception):
                service.kill()


def failure_of(service: Service) -> ChildFailed:
    return ChildFailed(service.name, describe_exit(service.exit_code or 0), service.tail())


def _stop_rank(service: Service) -> int:
    return STOP_ORDER.index(service.role) if service.role in STOP_ORDER else -1


def _stop(service: Service) -> None:
    service.stop()


def _all_at_once(services: Sequence[Service], act: Callable[[Service], object]) -> None:
    """Each is bounded by its own deadline, so the whole is bounded by the longest."""
    threads = [threading.Thread(target=act, args=(service,)) for service in services]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
