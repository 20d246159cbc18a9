"""The list of jobs in the admin: its filters, its search, and its pages without a count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cached_property
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.db import connection
from django.db.models import QuerySet
from django.db.models.expressions import Combinable
from django.db.models.functions import Now
from django.http import HttpRequest

from tasks.ledger import Selection
from tasks.models import Job
from tasks.paging import Page, Place, Window, read_page
from tasks.registry import ledger_tasks
from tasks.states import UNFINISHED, State
from tasks.wiring import topology

OLDER, NEWER = "upto", "after"
# Queued, but for a reason of its own not to run now.
ON_HOLD = "on hold"
# What the list shows. Payloads, results and tracebacks stay where they are.
COLUMNS = (
    "seq", "task", "queue", "tenant", "state", "idempotency_key", "former_key", "attempts",
    "crashes", "hold_reason", "run_at", "due", "failure", "dead_letter", "cancel_requested_at",
    "created_at", "started_at", "claimed_at", "finished_at",
)  # fmt: skip


class KeysetChangeList(ChangeList):
    """Pages by ``seq`` in place of numbered ones; a search by column order is not offered."""

    # Rows looked at for one page of a filter without an index of its own: a tenth of a second
    # in memory, a few seconds from a cold disk.
    window_size = 100_000

    place: Place
    page: Page

    def get_filters(self, request: HttpRequest) -> Any:
        self.place = place_of(request)
        for parameters in (self.params, self.filter_params):
            parameters.pop(OLDER, None)
            parameters.pop(NEWER, None)
        return super().get_filters(request)

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[str | Combinable]:
        return ["-seq"]

    def get_results(self, request: HttpRequest) -> None:
        self.page = read_page(
            self.queryset.only(*COLUMNS).annotate(now=Now()),
            self.place,
            size=self.list_per_page,
            window=self.window(),
        )
        self.result_list = self.page.rows
        self.result_count = len(self.page.rows)
        self.full_result_count = None
        self.show_full_result_count = False
        self.show_admin_actions = bool(self.page.rows)
        self.can_show_all = self.multi_page = False
        self.paginator = None

    def window(self) -> Window | None:
        """None where an index leads to the rows: a search, a small set, one filter in order."""
        filters = [f for f in self.filter_specs if isinstance(f, JobFilter) and f.value()]
        in_order = [f for f in filters if f.is_in_order]
        if self.query or any(f.is_small for f in filters):
            return None
        if not in_order:
            return Window(self.root_queryset, self.window_size) if filters else None
        if len(filters) == 1:
            return None
        rows = in_order[-1].queryset(self.model_admin, self.root_queryset)
        return Window(rows, self.window_size)

    # --- for the template ---

    @property
    def choices(self) -> list[tuple[str, list[Any]]]:
        return [(str(spec.title), list(spec.choices(self))) for spec in self.filter_specs]

    @property
    def newest_url(self) -> str | None:
        return None if self.place.at is None else self.get_query_string()

    @property
    def newer_url(self) -> str | None:
        return self.url_of(NEWER, self.page.newer)

    @property
    def older_url(self) -> str | None:
        return self.url_of(OLDER, self.page.older)

    def url_of(self, direction: str, place: int | None) -> str | None:
        return None if place is None else self.get_query_string({direction: place})

    @cached_property
    def looked_back_to(self) -> datetime | None:
        """When the first job beyond a cut page was accepted; None when the cut was upwards."""
        if not self.page.cut or self.page.older in (None, self.place.at):
            return None
        beyond = Job.objects.filter(seq=self.page.older).values_list("created_at", flat=True)
        return beyond.first()


def place_of(request: HttpRequest) -> Place:
    try:
        if NEWER in request.GET:
            return Place(int(request.GET[NEWER]), towards_newer=True)
        return Place(int(request.GET[OLDER]) if OLDER in request.GET else None)
    except ValueError as exc:
        raise IncorrectLookupParameters from exc


# --- filters -----------------------------------------------------------------------------


class JobFilter(admin.SimpleListFilter):
    """One column, one value. Its choices never come from the table."""

    # Jobs with this value are few, and an index leads to them.
    is_small = False
    # An index gives the jobs with this value in the order of acceptance.
    is_in_order = False

    def known_values(self) -> Iterable[str]:
        raise NotImplementedError

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """The known values, and the one that was asked for: Django drops a filter without any."""
        values = list(self.known_values())
        asked = self.value()
        if asked is not None and asked not in values:
            values.append(asked)
        return [(value, value or "(none)") for value in values]

    def queryset(self, request: Any, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        return queryset if value is None else queryset.filter((str(self.parameter_name), value))


class StateFilter(JobFilter):
    title = "state"
    parameter_name = "state"

    def known_values(self) -> Iterable[str]:
        return [State.QUEUED.value, ON_HOLD, *(s.value for s in State if s is not State.QUEUED)]

    def queryset(self, request: Any, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() == ON_HOLD:
            return queryset.filter(state=State.QUEUED).exclude(hold_reason="")
        return super().queryset(request, queryset)

    @property
    def is_small(self) -> bool:  # type: ignore[override]
        # Bounded by the window of the relay and the number of slots.
        return self.value() in (State.DISPATCHED, State.RUNNING)

    @property
    def is_in_order(self) -> bool:  # type: ignore[override]
        return self.value() in (State.FAILED, ON_HOLD)


class DeadLetterFilter(JobFilter):
    title = "dead letter"
    parameter_name = "dead_letter"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("1", "waits for an operator")]

    def queryset(self, request: Any, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(dead_letter=True) if self.value() else queryset

    @property
    def is_small(self) -> bool:  # type: ignore[override]
        return bool(self.value())


class QueueFilter(JobFilter):
    title = "queue"
    parameter_name = "queue"

    def known_values(self) -> Iterable[str]:
        return topology().queues


class TaskFilter(JobFilter):
    title = "task"
    parameter_name = "task"

    def known_values(self) -> Iterable[str]:
        return ledger_tasks()


class TenantFilter(JobFilter):
    """Reached from a tenant's name in the list: who they all are, only the table knows."""

    title = "tenant"
    parameter_name = "tenant"
    is_in_order = True

    def known_values(self) -> Iterable[str]:
        return ()


# --- what the filters mean, for whoever cancels it all -------------------------------------


def selection_of(given: Mapping[str, str], now: datetime) -> Selection | None:
    """The unfinished jobs that a filtered list shows; None when a filter says more than that, or
    when there is none that says which jobs are meant."""
    narrowing = {name: given[name] for name in ("task", "queue", "tenant") if name in given}
    state = given.get("state")
    if not narrowing or {"q", "dead_letter"} & given.keys() or state not in (None, *UNFINISHED):
        return None
    if any("\x00" in value for value in narrowing.values()):  # in no row
        return None
    return Selection(**narrowing, state=state, created_before=now)


# --- search ------------------------------------------------------------------------------


def search(term: str) -> list[UUID]:
    """Ids of the jobs with exactly this id or this idempotency key, of whatever tenant."""
    found = jobs_of_key(term)
    try:
        return [UUID(term), *found]
    except ValueError:
        return found


def jobs_of_key(key: str) -> list[UUID]:
    """The index of keys begins with the tenant: hop from tenant to tenant, one look at each."""
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH RECURSIVE tenants AS ("
            " (SELECT tenant FROM tasks_job ORDER BY tenant LIMIT 1)"
            " UNION ALL"
            " SELECT (SELECT tenant FROM tasks_job WHERE tenant > t.tenant"
            " ORDER BY tenant LIMIT 1) FROM tenants t WHERE t.tenant IS NOT NULL)"
            " SELECT found.id FROM tenants t CROSS JOIN LATERAL ("
            " SELECT id FROM tasks_job j WHERE j.tenant = t.tenant AND j.idempotency_key = %s"
            " LIMIT 1) found",
            [key],
        )
        return [job_id for (job_id,) in cursor.fetchall()]
