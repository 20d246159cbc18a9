"""The schema of the ledger. No behaviour: every change of a job is in ``ledger.py``.

Django declares the tables; PostgreSQL holds the truth. The CHECK constraints make rows that
should not exist impossible, and the partial indexes keep finished rows out of every query
that looks for work.
"""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now
from psycopg.types.json import Json

from tasks.states import Action, Failure, Hold, Outcome, Pausable, State

TERMINAL = [State.SUCCEEDED, State.FAILED, State.CANCELLED]


class JsonField(models.Field):  # type: ignore[type-arg]  # generic for type checkers only
    """A ``json`` column, not ``jsonb``: key order and numbers stay as they were sent."""

    def db_type(self, connection: Any) -> str:
        return "json"

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        return None if value is None else Json(value)


class Job(models.Model):
    """One intent to run a task, with one identity for life."""

    id = models.UUIDField(primary_key=True)
    seq = models.BigIntegerField(
        db_default=models.Func(models.Value("tasks_job_seq"), function="nextval"),
        help_text="The order of acceptance.",
    )
    task = models.CharField(max_length=255)
    queue = models.CharField(max_length=100)
    lane = models.CharField(
        max_length=255,
        blank=True,
        db_default="",
        help_text="The task, where it has a rate of its own: it must not delay the others.",
    )
    tenant = models.CharField(max_length=100, blank=True, db_default="")
    # Empty once a task with unique="unfinished" gave its key to a younger job.
    idempotency_key = models.CharField(max_length=255, null=True)
    former_key = models.CharField(max_length=255, null=True)
    fingerprint = models.CharField(max_length=64)
    payload = JsonField()
    headers = JsonField(null=True)
    priority = models.SmallIntegerField(db_default=0)
    state = models.CharField(
        max_length=10, db_default=State.QUEUED, choices=[(s.value, s.value) for s in State]
    )
    hold_reason = models.CharField(max_length=200, db_default="", blank=True)
    held_at = models.DateTimeField(null=True, help_text="Since when it must not run.")
    returned_since = models.DateTimeField(
        null=True,
        help_text="When it was first given back or put on hold after its latest attempt.",
    )
    run_at = models.DateTimeField(db_default=Now())
    due = models.BooleanField(
        db_default=True,
        help_text="False while run_at lies ahead: such rows stay out of the index of due work.",
    )
    start_by = models.DateTimeField(null=True)
    ordering_key = models.CharField(max_length=255, null=True)
    dispatch_no = models.IntegerField(db_default=0)
    dispatched_at = models.DateTimeField(null=True)
    attempts = models.IntegerField(db_default=0, help_text="Runs that ended by their own outcome.")
    crashes = models.IntegerField(db_default=0, help_text="Runs whose process died.")
    batched = models.BooleanField(
        db_default=False,
        help_text="Whether its latest run was claimed together with others.",
    )
    crashes_in_batch = models.IntegerField(
        db_default=0,
        help_text="Crashes of batched runs: they say nothing about this job alone.",
    )
    fence = models.IntegerField(db_default=0)
    lease_expires_at = models.DateTimeField(null=True)
    worker = models.CharField(max_length=255, db_default="", blank=True)
    release = models.CharField(max_length=100, db_default="", blank=True)
    cancel_requested_at = models.DateTimeField(null=True)
    cancel_reason = models.CharField(max_length=500, db_default="", blank=True)
    progress = JsonField(null=True)
    checkpoint = JsonField(null=True)
    result = JsonField(null=True)
    result_note = models.CharField(max_length=500, db_default="", blank=True)
    failure = models.CharField(
        max_length=12, db_default="", blank=True, choices=[(f.value, f.value) for f in Failure]
    )
    dead_letter = models.BooleanField(db_default=False)
    error_type = models.CharField(max_length=255, db_default="", blank=True)
    error_message = models.TextField(db_default="", blank=True)
    error_traceback = models.TextField(db_default="", blank=True)
    created_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField(null=True, help_text="Of the first run.")
    claimed_at = models.DateTimeField(null=True, help_text="Of the latest run.")
    finished_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "idempotency_key"], name="tasks_job_one_job_per_key"
            ),
            models.CheckConstraint(
                condition=Q(state__in=[s.value for s in State]), name="tasks_job_state_is_known"
            ),
            models.CheckConstraint(
                condition=Q(state=State.RUNNING, lease_expires_at__isnull=False)
                | (~Q(state=State.RUNNING) & Q(lease_expires_at__isnull=True)),
                name="tasks_job_lease_exactly_when_running",
            ),
            models.CheckConstraint(
                condition=Q(state__in=TERMINAL, finished_at__isnull=False)
                | (~Q(state__in=TERMINAL) & Q(finished_at__isnull=True)),
                name="tasks_job_finished_exactly_when_terminal",
            ),
            models.CheckConstraint(
                condition=Q(state=State.DISPATCHED, dispatched_at__isnull=False)
                | ~Q(state=State.DISPATCHED),
                name="tasks_job_dispatched_has_time",
            ),
            models.CheckConstraint(
                condition=Q(state=State.FAILED) & ~Q(failure="")
                | (~Q(state=State.FAILED) & Q(failure="", dead_letter=False)),
                name="tasks_job_failure_exactly_when_failed",
            ),
            models.CheckConstraint(
                condition=Q(hold_reason="") | Q(state=State.QUEUED),
                name="tasks_job_held_only_when_queued",
            ),
            models.CheckConstraint(
                condition=Q(idempotency_key__isnull=False) | Q(former_key__isnull=False),
                name="tasks_job_has_or_had_a_key",
            ),
            models.CheckConstraint(
                condition=Q(priority__gte=-100, priority__lte=100),
                name="tasks_job_priority_in_range",
            ),
        ]
        indexes = [
            # Due work: the relay hops from tenant to tenant, and takes of each in this order.
            models.Index(
                F("queue"),
                F("lane"),
                F("tenant"),
                F("priority").desc(),
                F("seq"),
                name="tasks_job_due",
                condition=Q(state=State.QUEUED, due=True, hold_reason=""),
            ),
            # Work whose time has not come.
            models.Index(
                fields=["run_at"],
                name="tasks_job_scheduled",
                condition=Q(state=State.QUEUED, due=False),
            ),
            models.Index(
                fields=["queue", "dispatched_at"],
                name="tasks_job_dispatched",
                condition=Q(state=State.DISPATCHED),
            ),
            models.Index(
                fields=["queue", "lease_expires_at"],
                name="tasks_job_running",
                condition=Q(state=State.RUNNING),
            ),
            models.Index(
                fields=["start_by"],
                name="tasks_job_start_by",
                condition=Q(
                    state__in=[State.QUEUED, State.DISPATCHED],
                    start_by__isnull=False,
                    started_at__isnull=True,
                ),
            ),
            models.Index(
                fields=["finished_at"], name="tasks_job_dead_letter", condition=Q(dead_letter=True)
            ),
            # Who is next of an ordering key, and whether one of it is still under way.
            models.Index(
                fields=["queue", "tenant", "ordering_key", "seq"],
                name="tasks_job_order",
                condition=Q(
                    state__in=[State.QUEUED, State.DISPATCHED, State.RUNNING],
                    ordering_key__isnull=False,
                ),
            ),
            # Ordering keys that have somebody waiting.
            models.Index(
                fields=["queue", "tenant", "ordering_key", "seq"],
                name="tasks_job_in_line",
                condition=Q(state=State.QUEUED, hold_reason=Hold.ORDER),
            ),
            # Keys that were freed lately.
            models.Index(
                fields=["finished_at"],
                name="tasks_job_key_freed",
                condition=Q(ordering_key__isnull=False, finished_at__isnull=False),
            ),
            # Lists, newest first. Not by id: callers may bring their own.
            models.Index(fields=["-seq"], name="tasks_job_newest"),
            models.Index(fields=["tenant", "-seq"], name="tasks_job_of_tenant"),
            models.Index(fields=["seq"], name="tasks_job_failed", condition=Q(state=State.FAILED)),
            models.Index(
                fields=["seq"],
                name="tasks_job_held",
                condition=Q(state=State.QUEUED) & ~Q(hold_reason=""),
            ),
            # Due and held: with the index of due work, all that waits in a queue.
            models.Index(
                fields=["queue", "tenant"],
                name="tasks_job_due_but_held",
                condition=Q(state=State.QUEUED, due=True) & ~Q(hold_reason=""),
            ),
            models.Index(
                fields=["queue", "task", "seq"],
                name="tasks_job_paused",
                condition=Q(state=State.QUEUED, hold_reason=Hold.PAUSED),
            ),
            # Since when what is on hold comes back and back: some day the relay gives it up.
            models.Index(
                fields=["queue", "returned_since"],
                name="tasks_job_held_since",
                condition=Q(state=State.QUEUED, returned_since__isnull=False) & ~Q(hold_reason=""),
            ),
            # What waits for another worker: the relay hops from one task, or release, to the next.
            models.Index(
                fields=["queue", "task", "held_at"],
                name="tasks_job_unknown",
                condition=Q(state=State.QUEUED, hold_reason=Hold.TASK_UNKNOWN),
            ),
            models.Index(
                fields=["queue", "release", "held_at"],
                name="tasks_job_incompatible",
                condition=Q(state=State.QUEUED, hold_reason__startswith=Hold.INCOMPATIBLE),
            ),
        ]
        permissions = [("operate_job", "Can cancel, replay and dismiss jobs")]

    def __str__(self) -> str:
        return f"{self.task} {self.id}"


class Attempt(models.Model):
    """A run that ended by its own outcome."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="history", db_index=False)
    fence = models.IntegerField()
    number = models.IntegerField()
    outcome = models.CharField(max_length=10, choices=[(o.value, o.value) for o in Outcome])
    worker = models.CharField(max_length=255)
    release = models.CharField(max_length=100, blank=True)
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(db_default=Now())
    error_type = models.CharField(max_length=255, db_default="", blank=True)
    error_message = models.TextField(db_default="", blank=True)
    error_traceback = models.TextField(db_default="", blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job", "fence"], name="tasks_attempt_one_per_fence")
        ]
        indexes = [
            # What a circuit breaker counts. Success pays nothing.
            models.Index(
                fields=["finished_at"],
                name="tasks_attempt_failed",
                condition=Q(outcome__in=[Outcome.RETRY, Outcome.FAILED]),
            )
        ]

    def __str__(self) -> str:
        return f"attempt {self.number}: {self.outcome}"


class Step(models.Model):
    """Part of a job that is done once: begun, and later done with its result."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="steps", db_index=False)
    name = models.CharField(max_length=255)
    fence = models.IntegerField()
    begun_at = models.DateTimeField(db_default=Now())
    done_at = models.DateTimeField(null=True)
    result = JsonField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job", "name"], name="tasks_step_once_per_job")
        ]

    def __str__(self) -> str:
        return self.name


class Output(models.Model):
    """A row that a job emitted for a reader, in the order of ``seq``."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="outputs", db_index=False)
    seq = models.BigIntegerField()
    data = JsonField()
    at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job", "seq"], name="tasks_output_once_per_seq")
        ]

    def __str__(self) -> str:
        return f"output {self.seq}"


class OperatorAction(models.Model):
    """Who cancelled, replayed or dismissed a job, and why."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="actions")
    action = models.CharField(max_length=10, choices=[(a.value, a.value) for a in Action])
    actor = models.CharField(max_length=255)
    reason = models.CharField(max_length=500, blank=True)
    at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return f"{self.action} by {self.actor}"


class Worker(models.Model):
    """A worker that beats. Its row tells the relay how much a queue can take."""

    name = models.CharField(max_length=255, primary_key=True)
    host = models.CharField(max_length=255)
    pid = models.IntegerField()
    release = models.CharField(max_length=100, db_default="", blank=True)
    queues = models.JSONField()
    known_tasks = models.JSONField()
    capacity = models.IntegerField()
    busy = models.IntegerField(db_default=0)
    draining = models.BooleanField(db_default=False)
    reconnects = models.IntegerField(
        db_default=0, help_text="How often it lost the broker and found it again."
    )
    # Jobs that were unfinished when it drained, each given back.
    given_back = models.JSONField(null=True)
    started_at = models.DateTimeField(db_default=Now())
    last_beat = models.DateTimeField(db_default=Now())
    stopped_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return self.name


class Relay(models.Model):
    """A relay that beats. ``sleeping`` asks whoever enqueues to wake it."""

    id = models.UUIDField(primary_key=True)
    host = models.CharField(max_length=255)
    pid = models.IntegerField()
    release = models.CharField(max_length=100, db_default="", blank=True)
    sleeping = models.BooleanField(db_default=False)
    started_at = models.DateTimeField(db_default=Now())
    last_beat = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return f"relay {self.host}:{self.pid}"


class Limit(models.Model):
    """What the relays agree on about a downstream, or about a task with a rate of its own."""

    name = models.CharField(max_length=255, primary_key=True)
    tokens = models.FloatField(default=0, help_text="Calls that its rate allows at once.")
    tokens_at = models.DateTimeField(db_default=Now())
    paused_until = models.DateTimeField(null=True, help_text="A job asked for a pause.")
    pause_reason = models.CharField(max_length=500, db_default="", blank=True)
    # The circuit breaker: open from opened_at; a probe may go when open_until has passed.
    opened_at = models.DateTimeField(null=True)
    open_until = models.DateTimeField(null=True)
    open_reason = models.CharField(max_length=500, db_default="", blank=True)
    openings = models.IntegerField(db_default=0, help_text="In a row, without a success between.")
    probe = models.UUIDField(null=True, help_text="The job that tries whether it works again.")
    probe_dispatch_no = models.IntegerField(db_default=0)
    probe_until = models.DateTimeField(null=True, help_text="Then another one may try.")
    closed_at = models.DateTimeField(null=True, help_text="Failures before that do not count.")

    def __str__(self) -> str:
        return self.name


class QueueState(models.Model):
    """What the relays measure of a queue, for admission and for estimates."""

    queue = models.CharField(max_length=100, primary_key=True)
    per_s = models.FloatField(db_default=0, help_text="Jobs dispatched per second, lately.")
    per_s_at = models.DateTimeField(db_default=Now())
    waiting = models.IntegerField(db_default=0, help_text="Due jobs up to waiting_seq.")
    waiting_seq = models.BigIntegerField(
        db_default=0, help_text="Who asks counts the younger ones."
    )
    waiting_at = models.DateTimeField(db_default=Now())
    idle_at = models.DateTimeField(db_default=Now(), help_text="When nothing was waiting, last.")
    tenants = models.IntegerField(db_default=0, help_text="With due jobs when it was measured.")
    room = models.IntegerField(null=True, help_text="Jobs that may wait; empty: no bound.")

    def __str__(self) -> str:
        return self.queue


class TenantLoad(models.Model):
    """Tenants that fill much of their share of a queue, as last measured."""

    queue = models.CharField(max_length=100)
    tenant = models.CharField(max_length=100, blank=True)
    waiting = models.IntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["queue", "tenant"], name="tasks_tenantload_once")
        ]

    def __str__(self) -> str:
        return f"{self.tenant} in {self.queue}"


class Promise(models.Model):
    """Until when the room of a queue, or of a tenant in it, is promised to refused callers."""

    queue = models.CharField(max_length=100)
    tenant = models.CharField(max_length=100, blank=True, null=True, help_text="Null: of all.")
    until = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["queue", "tenant"], name="tasks_promise_once", nulls_distinct=False
            )
        ]

    def __str__(self) -> str:
        return f"{self.queue} until {self.until}"


class Tenant(models.Model):
    """Only tenants that differ from the others need a row."""

    name = models.CharField(max_length=100, primary_key=True)
    weight = models.PositiveSmallIntegerField(
        default=1, help_text="Its share of a queue, as against 1 of the others. At most 100."
    )
    max_running = models.PositiveIntegerField(
        null=True, blank=True, help_text="Jobs at once per queue; empty: what the queue says."
    )

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(weight__gte=1, weight__lte=100), name="tasks_tenant_weight_in_range"
            )
        ]

    def __str__(self) -> str:
        return self.name


class Pause(models.Model):
    """An operator keeps a queue, a task or a tenant from running, until it is resumed."""

    kind = models.CharField(max_length=6, choices=[(k.value, k.value) for k in Pausable])
    name = models.CharField(max_length=255, blank=True)
    closed = models.BooleanField(
        default=False, help_text="Of a queue: refuse new jobs as well (503)."
    )
    actor = models.CharField(max_length=255)
    reason = models.CharField(max_length=500, blank=True)
    paused_at = models.DateTimeField(db_default=Now())
    until = models.DateTimeField(null=True, blank=True, help_text="Empty: until it is resumed.")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["kind", "name"], name="tasks_pause_once")]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class ParkedMessage(models.Model):
    """A broker message that is no job of ours, kept with its bytes and the reason."""

    at = models.DateTimeField(db_default=Now())
    queue = models.CharField(max_length=255, blank=True)
    reason = models.CharField(max_length=500)
    task = models.CharField(max_length=255, blank=True)
    headers = models.TextField(blank=True)
    body = models.BinaryField()

    class Meta:
        indexes = [models.Index(fields=["at"], name="tasks_parked_at")]

    def __str__(self) -> str:
        return f"{self.task or 'message'}: {self.reason}"


class ApiClient(models.Model):
    """Somebody who may use the HTTP interface, for one tenant or all. The token is kept hashed."""

    name = models.CharField(max_length=100, unique=True)
    tenant = models.CharField(max_length=100, blank=True)
    every_tenant = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Reads, and with operate pauses and cancels, for the whole installation.",
    )
    token_hash = models.CharField(max_length=64, unique=True, editable=False)
    may_enqueue = models.BooleanField(default=True)
    may_read = models.BooleanField(default=True)
    may_operate = models.BooleanField(default=False)
    created_at = models.DateTimeField(db_default=Now())
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            # Who enqueues may cancel: without the scope of operators, its own tenant's only.
            models.CheckConstraint(
                condition=Q(every_tenant=False) | Q(may_enqueue=False) | Q(may_operate=True),
                name="tasks_apiclient_every_tenant_operates",
                violation_error_message=(
                    "A client of every tenant that enqueues needs the scope operate."
                ),
            )
        ]

    def __str__(self) -> str:
        return self.name
