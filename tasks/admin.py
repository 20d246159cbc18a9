"""The admin of the engine: jobs, who works on them, and who may call.

Jobs have a module of their own, ``job_admin``.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet
from django.db.models.functions import Now
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.safestring import SafeString

from tasks import job_admin, pauses
from tasks import job_display as show
from tasks.clients import Scope, create_client, revoke_client
from tasks.fleet import LIVE_FOR_S
from tasks.job_display import BLANK, badge
from tasks.models import ApiClient, Job, Limit, ParkedMessage, Pause, Relay, Tenant, Worker
from tasks.read_only_admin import ReadOnlyAdmin
from tasks.registry import task_of
from tasks.spelling import doubt
from tasks.states import Pausable

admin.site.register(Job, job_admin.JobAdmin)


# --- who works ---------------------------------------------------------------------------


class BeatingAdmin(ReadOnlyAdmin):
    """Processes that beat."""

    ordering = ("-last_beat",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        beats = Q(last_beat__gt=Now() - timedelta(seconds=LIVE_FOR_S))
        rows = super().get_queryset(request)
        return rows.annotate(beats=ExpressionWrapper(beats, output_field=BooleanField()))  # type: ignore[no-any-return]


@admin.display(description="state")
def life(row: Any) -> SafeString:
    if getattr(row, "stopped_at", None):
        return badge("cancelled", "⊘", "stopped")
    if not row.beats:
        return badge("failed", "✕", "lost")
    if getattr(row, "draining", False):
        return badge("running", "▶", "draining")
    return badge("succeeded", "✓", "live")


beat = show.time_of("last_beat", "last beat")
started = show.time_of("started_at", "started")


@admin.register(Worker)
class WorkerAdmin(BeatingAdmin):
    list_display = ("name", life, "queue_names", "slots", "release", started, beat)
    fields: ClassVar[Any] = (
        life,
        "host",
        "pid",
        "release",
        "queue_names",
        "task_names",
        "slots",
        started,
        beat,
    )

    @admin.display(description="queues")
    def queue_names(self, worker: Worker) -> str:
        return ", ".join(worker.queues) or BLANK

    @admin.display(description="known tasks")
    def task_names(self, worker: Worker) -> str:
        return ", ".join(sorted(worker.known_tasks)) or BLANK

    @admin.display(description="busy")
    def slots(self, worker: Worker) -> str:
        return f"{worker.busy} of {worker.capacity}"


@admin.register(Relay)
class RelayAdmin(BeatingAdmin):
    list_display = ("__str__", life, "sleeping", "release", started, beat)
    fields: ClassVar[Any] = (life, "host", "pid", "release", "sleeping", started, beat)


# --- what may run when -------------------------------------------------------------------


@admin.register(Limit)
class LimitAdmin(ReadOnlyAdmin):
    """Downstreams, and tasks with a rate of their own, once something was written of them."""

    list_display = ("name", "breaker", "reason", "tokens_left", "paused", "openings")
    fields: ClassVar[Any] = (
        "name",
        "breaker",
        "open_reason",
        "openings",
        show.time_of("opened_at", "opened"),
        show.time_of("open_until", "a probe may go from"),
        "probe",
        show.time_of("closed_at", "closed again"),
        "paused",
        "pause_reason",
        "tokens_left",
    )
    ordering = ("name",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Limit]:
        return Limit.objects.annotate(now=Now())

    @admin.display(description="breaker")
    def breaker(self, limit: Any) -> SafeString:
        if limit.opened_at is None:
            return badge("succeeded", "✓", "closed")
        if limit.open_until > limit.now:
            return badge("failed", "✕", "open")
        return badge("dispatched", "◔", "half open")

    @admin.display(description="reason")
    def reason(self, limit: Any) -> str:
        is_paused = limit.paused_until is not None and limit.paused_until > limit.now
        return limit.open_reason or (limit.pause_reason if is_paused else "") or BLANK

    @admin.display(description="calls allowed at once")
    def tokens_left(self, limit: Any) -> str:
        """Of those whose rate was used; what has come since is not counted here."""
        return f"{limit.tokens:.1f}, {show.duration(limit.now - limit.tokens_at)} ago"

    @admin.display(description="paused by a job until")
    def paused(self, limit: Any) -> SafeString | str:
        is_paused = limit.paused_until is not None and limit.paused_until > limit.now
        return show.moment(limit.paused_until) if is_paused else BLANK


class OperatorAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # generic for checkers only
    """Operators need no other permission than theirs."""

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return is_operator(request) or super().has_view_permission(request, obj)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return is_operator(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return is_operator(request)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return is_operator(request)

    class Media:
        css = {"all": ["tasks/admin.css"]}


def is_operator(request: HttpRequest) -> bool:
    return bool(request.user.has_perm("tasks.operate_job"))


class PauseForm(ModelForm):  # type: ignore[type-arg]  # generic for checkers only
    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        kind = cleaned.get("kind") or self.instance.kind
        if cleaned.get("closed") and kind != Pausable.QUEUE:
            self.add_error("closed", "Only a queue can be closed.")
        if not pauses.still_ahead(cleaned.get("until")):
            self.add_error("until", "That time is over.")
        return cleaned


@admin.register(Pause)
class PauseAdmin(OperatorAdmin):
    """To add one is to pause, to delete one is to resume."""

    form = PauseForm
    list_display = ("name", "kind", "closed", "reason", "actor", "paused_at", "until")
    fields = ("kind", "name", "reason", "until", "closed")
    ordering = ("-paused_at",)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return () if obj is None else ("kind", "name")

    def save_model(
        self, request: HttpRequest, obj: Any, form: ModelForm[Any], change: bool
    ) -> None:
        kind = Pausable(obj.kind)
        pauses.pause(
            kind, obj.name, actor=request.user.get_username(), reason=obj.reason,
            until=obj.until, closed=obj.closed,
        )  # fmt: skip
        obj.pk = Pause.objects.only("pk").get(kind=kind, name=obj.name).pk
        odd = doubt(kind, obj.name)
        if odd:
            self.message_user(request, f"{odd} It is paused all the same.", messages.WARNING)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        pauses.resume(Pausable(obj.kind), obj.name, actor=request.user.get_username())

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Pause]) -> None:
        for row in queryset:
            self.delete_model(request, row)


@admin.register(Tenant)
class TenantAdmin(OperatorAdmin):
    """Only tenants that differ from the others."""

    list_display = ("name", "weight", "max_running")
    fields = ("name", "weight", "max_running")
    ordering = ("name",)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return () if obj is None else ("name",)


# --- what was no job ---------------------------------------------------------------------


arrived = show.time_of("at", "arrived")


@admin.register(ParkedMessage)
class ParkedMessageAdmin(ReadOnlyAdmin):
    list_display = ("id", arrived, "queue", "task", "reason")
    fields: ClassVar[Any] = (arrived, "queue", "task", "reason", "headers_shown", "body_shown")
    ordering = ("-id",)
    list_per_page = 50
    show_full_result_count = False

    def get_queryset(self, request: HttpRequest) -> QuerySet[ParkedMessage]:
        return ParkedMessage.objects.defer("headers", "body")

    @admin.display(description="headers")
    def headers_shown(self, message: ParkedMessage) -> SafeString | str:
        return HIDDEN if hides(message) else show.block(message.headers)

    @admin.display(description="body")
    def body_shown(self, message: ParkedMessage) -> SafeString | str:
        return HIDDEN if hides(message) else show.bytes_block(bytes(message.body))


HIDDEN = "Not shown: the task has sensitive arguments."


def hides(message: ParkedMessage) -> bool:
    """Celery's headers repeat the arguments, and there they have no names to mask by."""
    return bool(getattr(task_of(message.task), "sensitive", ()))


# --- who may call ------------------------------------------------------------------------


@admin.register(ApiClient)
class ApiClientAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # generic for checkers only
    """A new client's token is shown in the answer to the form and nowhere else, ever."""

    list_display = (
        "name", "tenant", "every_tenant", "in_use", "may_enqueue", "may_read", "may_operate",
        show.created,
    )  # fmt: skip
    fields = ("name", "tenant", "every_tenant", "may_enqueue", "may_read", "may_operate")
    ordering = ("name",)
    actions = ("revoke",)

    class Media:
        css = {"all": ["tasks/admin.css"]}

    @admin.display(description="state")
    def in_use(self, client: ApiClient) -> SafeString:
        revoked = client.revoked_at is not None
        return badge("cancelled", "⊘", "revoked") if revoked else badge("succeeded", "✓", "in use")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # revoking keeps the name, and with it who did what

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        # The jobs of a client belong to its tenant: another tenant is another client.
        return () if obj is None else ("name", "tenant")

    def save_model(
        self, request: HttpRequest, obj: Any, form: ModelForm[Any], change: bool
    ) -> None:
        if change:
            return super().save_model(request, obj, form, change)
        scopes = {scope for scope in Scope if form.cleaned_data[f"may_{scope}"]}
        obj.token = create_client(
            obj.name, tenant=obj.tenant, scopes=scopes, every_tenant=obj.every_tenant
        )
        obj.pk = ApiClient.objects.only("pk").get(name=obj.name).pk

    def response_add(
        self, request: HttpRequest, obj: Any, post_url_continue: str | None = None
    ) -> HttpResponse:
        # Not as a message: those travel in a cookie or the session, where it would be kept.
        known = {**self.admin_site.each_context(request), "opts": self.opts, "media": self.media}
        page = {"title": f"Token of {obj.name}", "client": obj, "token": obj.token}
        return TemplateResponse(request, "admin/tasks/apiclient/token.html", known | page)

    @admin.action(description="Revoke selected clients", permissions=["change"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiClient]) -> None:
        revoked = [name for name in queryset.values_list("name", flat=True) if revoke_client(name)]
        if revoked:
            self.message_user(request, f"Revoked: {', '.join(revoked)}.", messages.SUCCESS)
        else:
            self.message_user(request, "They were revoked already.", messages.WARNING)
