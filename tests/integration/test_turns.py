"""Whose turn it is: tenants first, then priority, then age; one job of an ordering key."""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import UUID

import pytest
from django.db import connection

from tasks import ledger, order, turns
from tasks.enqueue import Item, enqueue, enqueue_many
from tasks.ledger import Dispatched, ErrorReport, dispatch
from tasks.models import Job, Pause, Tenant
from tasks.order import NO_KEY
from tasks.states import Failure, Hold, State
from tasks.turns import Rounds, Waiting
from tests.ledger_tasks import trace

pytestmark = pytest.mark.django_db


def given(tenant: str = "", *, jobs: int = 1, **options: Any) -> list[UUID]:
    items = [Item({"note": str(number)}, tenant=tenant, **options) for number in range(jobs)]
    return [answer.job_id for answer in enqueue_many(trace, items)]  # type: ignore[union-attr]


def ids(jobs: list[Dispatched]) -> list[UUID]:
    return [job.id for job in jobs]


def tenants(jobs: list[Dispatched]) -> str:
    return "".join(job.tenant for job in jobs)


def end(job: Dispatched) -> None:
    claim = ledger.claim(job.id, job.dispatch_no, worker="w", release="r", lease_s=15)
    assert claim
    assert ledger.succeed(job.id, claim.fence, result=None)


# --- tenants -----------------------------------------------------------------------------


def test_tenants_take_turns_however_much_one_of_them_has() -> None:
    given("a", jobs=50)
    given("b", jobs=2)
    given("c", jobs=5)
    assert tenants(dispatch("default", 9)) == "abcabcaca"


def test_who_comes_later_is_next_and_gets_nothing_for_the_time_before() -> None:
    rounds = Rounds()
    given("a", jobs=20)
    dispatch("default", 4, rounds=rounds)
    given("b", jobs=20)
    assert tenants(dispatch("default", 6, rounds=rounds)) == "bbabab"


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_turns_go_on_from_pass_to_pass(at_once: int) -> None:
    rounds = Rounds()
    for tenant in "abcdef":
        given(tenant, jobs=3)
    served = "".join(tenants(dispatch("default", at_once, rounds=rounds)) for _ in range(12))
    assert served == ("abcdef" * 3)[: 12 * at_once]


def test_a_round_reaches_every_one_of_many_tenants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TENANTS_AT_ONCE", 3)
    rounds = Rounds()
    for number in range(10):
        given(f"t{number}", jobs=5)
    served = [job.tenant for _ in range(5) for job in dispatch("default", 2, rounds=rounds)]
    assert Counter(served) == {f"t{number}": 1 for number in range(10)}


@pytest.mark.parametrize("at_once", [1, 2, 8])
def test_a_weight_is_a_share_however_few_go_at_once(at_once: int) -> None:
    """Where a limit lets one job go at a time, too, the others get theirs."""
    rounds = Rounds()
    Tenant.objects.create(name="b", weight=3)
    given("a", jobs=20)
    given("b", jobs=20)
    served = "".join(
        tenants(dispatch("default", at_once, rounds=rounds)) for _ in range(16 // at_once)
    )
    assert Counter(served) == {"a": 4, "b": 12}
    assert "bbbbb" not in served  # three, and one more where the turns are equal


def test_who_has_had_its_turn_long_ago_is_forgotten() -> None:
    rounds = Rounds()
    for number in range(1000):
        rounds.serve([f"t{number}", "often"], {f"t{number}": 1, "often": 2})
    assert len(rounds.ends) < 5


def test_a_tenant_has_no_more_in_flight_than_it_may() -> None:
    given("a", jobs=20)
    given("b", jobs=20)
    Tenant.objects.create(name="b", max_running=2)
    assert Counter(tenants(dispatch("default", 20, most=5))) == {"a": 5, "b": 2}
    assert dispatch("default", 20, most=5) == []
    Tenant.objects.all().delete()
    assert Counter(tenants(dispatch("default", 20))) == {"a": 10, "b": 10}


def test_paused_tenants_and_tasks_stay_where_they_are() -> None:
    given("a")
    given("b")
    Pause.objects.create(kind="tenant", name="a", actor="x")
    assert tenants(dispatch("default", 9)) == "b"
    Pause.objects.update(until="2020-01-01T00:00Z")
    assert dispatch("default", 9, paused_tasks=[trace.name]) == []
    assert tenants(dispatch("default", 9)) == "a"


@pytest.mark.parametrize("why_not", ["paused", "at their most"])
def test_many_who_may_not_do_not_hide_those_behind_them(
    why_not: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "TENANTS_AT_ONCE", 5)
    rounds = Rounds(last="a")
    for number in range(12):
        given(f"p{number:02}")
        if why_not == "paused":
            Pause.objects.create(kind="tenant", name=f"p{number:02}", actor="x")
        else:
            Tenant.objects.create(name=f"p{number:02}", max_running=0)
    given("z")
    served = [job for _ in range(4) for job in dispatch("default", 9, rounds=rounds)]
    assert tenants(served) == "z"


# --- within a tenant ---------------------------------------------------------------------


def test_within_a_tenant_priority_goes_first_then_age() -> None:
    low, old, young, high = (given(priority=value)[0] for value in (-3, 0, 0, 50))
    assert ids(dispatch("default", 9)) == [high, old, young, low]


def test_a_priority_is_worth_nothing_against_another_tenant() -> None:
    given("a", jobs=4, priority=100)
    given("b", jobs=4, priority=-100)
    assert tenants(dispatch("default", 4)) == "abab"


# --- lanes -------------------------------------------------------------------------------


def test_a_lane_is_dispatched_by_itself() -> None:
    [limited], [free] = given(), given()
    Job.objects.filter(id=limited).update(lane=trace.name)
    assert ledger.lanes_with_due_jobs() == [("default", ""), ("default", trace.name)]
    assert ids(dispatch("default", 9)) == [free]
    assert ids(dispatch("default", 9, lane=trace.name)) == [limited]


# --- ordering keys -----------------------------------------------------------------------


def test_of_an_ordering_key_one_job_goes_at_a_time_in_the_order_of_acceptance() -> None:
    accepted = given("a", jobs=3, ordering_key="k") + given("a", ordering_key="k", priority=100)
    served = []
    for _ in accepted:
        [job] = dispatch("default", 9)
        assert dispatch("default", 9) == []
        end(job)
        served.append(job.id)
        assert order.free_keys(5) == (1 if len(served) < 4 else 0)
    assert served == accepted


def test_other_keys_tenants_and_queues_are_not_held_up() -> None:
    given("a", jobs=2, ordering_key="k")
    given("a", jobs=2, ordering_key="other")
    given("b", jobs=2, ordering_key="k")
    given("a", jobs=2, ordering_key="k", queue="bulk")
    given("a", jobs=2)
    assert Counter(tenants(dispatch("default", 99))) == {"a": 4, "b": 1}
    assert tenants(dispatch("bulk", 99)) == "a"


@pytest.mark.parametrize("state", ["scheduled", "retrying", "dispatched", "running"])
def test_the_head_of_a_key_blocks_it_as_long_as_it_has_not_ended(state: str) -> None:
    [head] = given(ordering_key="k")
    given(ordering_key="k")
    if state == "scheduled":
        Job.objects.filter(id=head).update(due=False, run_at="2100-01-01T00:00Z")
    else:
        [job] = dispatch("default", 9)
        if state != "dispatched":
            claim = ledger.claim(head, job.dispatch_no, worker="w", release="", lease_s=15)
            assert claim
            if state == "retrying":
                ledger.retry(head, claim.fence, delay_s=99, error=ErrorReport.of("E", "e"))
    assert order.free_keys(5) == 0
    assert order.sweep_keys(NO_KEY, 10)[0] == 0
    assert dispatch("default", 9) == []


@pytest.mark.parametrize("ending", ["succeeded", "failed", "cancelled", "expired", "poison"])
def test_every_end_frees_the_key(ending: str) -> None:
    [head] = given(ordering_key="k")
    [next_] = given(ordering_key="k")
    [job] = dispatch("default", 9)
    if ending == "cancelled":
        ledger.cancel(head, actor="a")
    elif ending == "expired":
        Job.objects.filter(id=head).update(start_by="2020-01-01T00:00Z")
        assert ledger.expire(9)
    else:
        claim = ledger.claim(head, job.dispatch_no, worker="w", release="", lease_s=15)
        assert claim
        if ending == "succeeded":
            ledger.succeed(head, claim.fence, result=None)
        elif ending == "failed":
            error = ErrorReport.of("E", "e")
            ledger.fail(head, claim.fence, failure=Failure.ERROR, error=error)
        else:
            ledger.crash(head, claim.fence, max_crashes=1, reason="died")
    assert order.free_keys(5) == 1
    assert ids(dispatch("default", 9)) == [next_]


def test_a_replay_runs_at_the_tail_of_its_key() -> None:
    [first], [second] = given(ordering_key="k"), given(ordering_key="k")
    claim = ledger.claim(first, ledger.dispatch_here(first), worker="w", release="", lease_s=15)
    assert claim
    ledger.fail(first, claim.fence, failure=Failure.ERROR, error=ErrorReport.of("E", "e"))
    assert ledger.replay(first, actor="a", reason="again")
    assert order.sweep_keys(NO_KEY, 9)[0] == 1  # the second goes
    [job] = dispatch("default", 9)
    assert job.id == second
    end(job)
    order.free_keys(5)
    assert ids(dispatch("default", 9)) == [first]


def test_a_replay_that_is_alone_in_its_key_goes_at_once() -> None:
    [only] = given(ordering_key="k")
    claim = ledger.claim(only, ledger.dispatch_here(only), worker="w", release="", lease_s=15)
    assert claim
    ledger.fail(only, claim.fence, failure=Failure.ERROR, error=ErrorReport.of("E", "e"))
    assert ledger.replay(only, actor="a", reason="again")
    assert ids(dispatch("default", 9)) == [only]


def test_keys_in_which_nobody_waits_are_not_swept() -> None:
    for number in range(5):
        given(ordering_key=f"a{number}")
    given(jobs=2, ordering_key="z")
    Job.objects.filter(ordering_key="z", hold_reason="").delete()
    assert order.sweep_keys(NO_KEY, 2) == (1, NO_KEY)


def test_racers_that_did_not_see_each_other_still_go_one_by_one() -> None:
    accepted = given(jobs=3, ordering_key="k")
    Job.objects.update(hold_reason="")  # as if each had been inserted beside the others
    for job_id in accepted:
        [job] = dispatch("default", 9)
        assert job.id == job_id
        end(job)


def test_what_was_enqueued_at_the_moment_its_forerunner_ended_is_found_in_the_sweep() -> None:
    for number in range(7):
        enqueue(trace, {"note": "x"}, ordering_key=f"k{number}")
    Job.objects.update(hold_reason=Hold.ORDER)
    freed, after = order.sweep_keys(NO_KEY, 4)
    assert (freed, after) == (4, ("default", "", "k3"))
    assert order.sweep_keys(after, 4) == (3, NO_KEY)
    assert len(dispatch("default", 9)) == 7


# --- cost --------------------------------------------------------------------------------


ROWS = (
    "INSERT INTO tasks_job (id, task, queue, tenant, idempotency_key, fingerprint, payload, state,"
    " due, hold_reason, ordering_key, run_at, finished_at)"
    " SELECT gen_random_uuid(), 't', 'default', {tenant}, gen_random_uuid()::text, '', '{{}}',"
    " '{state}', {due}, '{hold}', {key}, now(), {finished} FROM generate_series(1, %s) AS n"
)


def insert_rows(
    number: int,
    *,
    tenant: str = "'big'",
    state: State = State.QUEUED,
    due: bool = True,
    hold: str = "",
    key: str = "NULL",
) -> None:
    finished = "now()" if state == State.SUCCEEDED else "NULL"
    with connection.cursor() as cursor:
        cursor.execute(
            ROWS.format(tenant=tenant, state=state, due=due, hold=hold, key=key, finished=finished),
            [number],
        )


def pages_read(limit: int = 20) -> int:
    """Pages that the statements of one dispatch touch; nothing is marked."""
    found = turns.turns(ledger.waiting_tenants("default", "", "m"), {}, Rounds(), limit)
    hops = {"queue": "default", "lane": "", "after": "m", "most": None}
    choice = turns.parameters("default", "", found, ())
    return pages(turns.TENANTS, {**hops, "tenants": turns.TENANTS_AT_ONCE}) + pages(
        f"{turns.chosen(found, limit, ())} SELECT * FROM chosen", choice
    )


def pages(sql: str, parameters: dict[str, Any]) -> int:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", parameters)
        plan = cursor.fetchone()[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


@pytest.mark.parametrize("analyzed", [True, False])
def test_what_a_dispatch_reads_does_not_grow_with_what_lies_in_the_table(analyzed: bool) -> None:
    insert_rows(50)
    few = pages_read()
    insert_rows(20_000)
    insert_rows(20_000, state=State.SUCCEEDED)
    insert_rows(20_000, due=False)
    insert_rows(20_000, hold=Hold.ORDER, key="'k'")
    if analyzed:
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE tasks_job")
    assert pages_read() < 2 * few + 50


def test_what_a_dispatch_reads_does_not_grow_with_the_number_of_tenants() -> None:
    insert_rows(turns.TENANTS_AT_ONCE, tenant="'t' || n")
    few = pages_read()
    insert_rows(10_000, tenant="'u' || n")
    assert pages_read() < 2 * few + 50


@pytest.mark.parametrize("tenants", [1, 20])
def test_postgresql_keeps_the_plan_of_a_dispatch(tenants: int) -> None:
    """It plans for longer than it runs, and each time anew where it thinks that it pays."""
    insert_rows(5_000, tenant=f"'t' || mod(n, {tenants})")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE tasks_job")
    for _ in range(12):
        dispatch("default", 4)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT sum(custom_plans), sum(generic_plans) FROM pg_prepared_statements"
            " WHERE statement ~ 'chosen AS|RECURSIVE behind' GROUP BY statement"
        )
        plans = cursor.fetchall()
    assert len(plans) >= 2
    assert all(generic >= 1 for _, generic in plans)


# --- decided without a database ------------------------------------------------------------


def test_few_rows_of_each_tenant_are_looked_at() -> None:
    alone, many, heavy = (
        turns.turns([Waiting(name, weight) for name in names], {}, Rounds(), 40)
        for names, weight in (("a", 1), ("abcdefgh", 1), ("abcdefgh", 5))
    )
    assert turns.rows_of_each(alone, 40) == 40
    assert turns.rows_of_each(many, 40) == 16  # twice its part, and on to a power of two
    assert turns.rows_of_each([*many, *heavy[:1]], 40) == 32
