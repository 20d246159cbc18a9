"""Any sequence of calls, compared with what a reader of the contract would expect."""

from __future__ import annotations

import asyncio

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tasks.errors import PoolClosed, PoolFull
from tasks.pool import Ticket, TicketState, Token, WorkerPool
from tests.pool.loops import turns

SLOTS, CAPACITY = 2, 3


class PoolMachine(RuleBasedStateMachine):
    """Work here waits for its own event, so each step of the machine decides what ends next."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.pool = WorkerPool(slots=SLOTS, capacity=CAPACITY, name="pool", policy="shed")
        self.tickets: list[Ticket[None]] = []
        self.begun: list[Ticket[None]] = []
        self.events: dict[str, asyncio.Event] = {}
        self.final: dict[Ticket[None], TicketState] = {}
        self.is_closed = False

    def teardown(self) -> None:
        self.loop.run_until_complete(self.pool.abort("the test is over"))
        assert all(ticket.state.is_terminal for ticket in self.tickets)
        self.loop.close()

    def in_state(self, state: TicketState) -> list[Ticket[None]]:
        return [ticket for ticket in self.tickets if ticket.state == state]

    @rule(priority=st.integers(0, 2), settles=st.booleans())
    def submit(self, priority: int, settles: bool) -> None:
        name = str(len(self.events))
        event = self.events[name] = asyncio.Event()

        async def work(token: Token) -> None:
            self.begun.append(next(t for t in self.tickets if t.name == name))
            await event.wait()
            token.check()

        async def call() -> None:
            queued = self.in_state(TicketState.QUEUED)
            has_room = len(self.in_state(TicketState.RUNNING)) < SLOTS or len(queued) < CAPACITY
            outranks = any(ticket.priority < priority for ticket in queued)
            try:
                self.tickets.append(await self.pool.submit(name, work, priority=priority))
                assert not self.is_closed
                assert has_room or outranks
            except PoolFull:
                assert not self.is_closed
                assert not has_room
                assert not outranks
            except PoolClosed:
                assert self.is_closed
            if settles:
                await turns()

        self.loop.run_until_complete(call())

    @precondition(lambda self: self.tickets)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.tickets))
        before = ticket.state
        assert ticket.cancel("told to") == (not before.is_terminal)
        if before == TicketState.QUEUED:
            assert ticket.state == TicketState.CANCELLED

    @precondition(lambda self: self.begun)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.begun))
        was_running, told = ticket.state == TicketState.RUNNING, ticket.token.cancelled
        self.events[ticket.name].set()
        self.loop.run_until_complete(turns(10))
        if was_running:
            expected = TicketState.CANCELLED if told else TicketState.SUCCEEDED
            assert ticket.state == expected

    @rule()
    def let_them_work(self) -> None:
        self.loop.run_until_complete(turns())

    @rule()
    def drain(self) -> None:
        self.is_closed = True
        self.loop.run_until_complete(self.pool.drain(0.0))
        assert all(ticket.state.is_terminal for ticket in self.tickets)

    @rule()
    def abort(self) -> None:
        self.is_closed = True
        self.loop.run_until_complete(self.pool.abort("told to"))
        assert all(ticket.state.is_terminal for ticket in self.tickets)

    @invariant()
    def a_terminal_state_is_for_ever(self) -> None:
        for ticket, state in self.final.items():
            assert ticket.state == state
        self.final = {t: t.state for t in self.tickets if t.state.is_terminal}

    @invariant()
    def nothing_begins_twice_or_after_its_end(self) -> None:
        assert len(set(self.begun)) == len(self.begun)
        never = (TicketState.QUEUED, TicketState.REJECTED)
        assert not any(ticket.state in never for ticket in self.begun)

    @invariant()
    def bounds_hold_and_counts_add_up(self) -> None:
        now = self.pool.snapshot()
        assert now.depth == len(self.in_state(TicketState.QUEUED)) <= CAPACITY
        assert now.active == len(self.in_state(TicketState.RUNNING)) <= SLOTS
        ended = now.succeeded + now.failed + now.cancelled + now.shed + now.discarded
        assert len(self.tickets) == now.accepted == now.depth + now.active + ended
        assert len(self.final) <= ended
        assert now.submitted == now.accepted + now.refused_full + now.refused_closed


TestPool = PoolMachine.TestCase
TestPool.settings = settings(
    max_examples=100,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
