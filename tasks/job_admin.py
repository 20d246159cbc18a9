"""The pages of jobs in the admin: the list, one job, a reason for an action, a form to enqueue.

Each parses, calls one function and renders. Nothing here writes a state.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.db.models import F, QuerySet, TextField, Window
from django.db.models.functions import Cast, Left, Now, RowNumber
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.safestring import SafeString

from tasks import job_display as show
from tasks import ledger, sql
from tasks.enqueue import Enqueued
from tasks.enqueue_form import EnqueueForm, offer, parameters_of
from tasks.job_list import (
    DeadLetterFilter,
    KeysetChangeList,
    QueueFilter,
    StateFilter,
    TaskFilter,
    TenantFilter,
    search,
    selection_of,
)
from tasks.ledger import CancelledMany, Selection
from tasks.models import Job
from tasks.operate import Answers, cancel_matching, operate
from tasks.read_only_admin import ReadOnlyAdmin
from tasks.registry import ledger_tasks
from tasks.representations import moment
from tasks.states import Action, State
from tasks.waiting import waiting_for

# Rows of each table on the page of a job; the latest ones.
HISTORY_ROWS = 100
# Of a thousand jobs, cancelled at once: some seconds at most.
BATCHES = 20
SHOWN_MAX = 300  # characters of a JSON value in such a table
DONE = {Action.CANCEL: "Cancelled", Action.REPLAY: "Queued again", Action.DISMISS: "Dismissed"}
NOT_DONE = {
    Action.CANCEL: "Not cancelled",
    Action.REPLAY: "Not replayed",
    Action.DISMISS: "Not dismissed",
}
# Why a person would press it, and what will happen.
EXPLAINED = {
    Action.CANCEL: "A job that waits is cancelled at once. A running one is asked to stop.",
    Action.REPLAY: "The job runs again: same id, same key, same payload, attempts from zero.",
    Action.DISMISS: "The job stays failed and leaves the list of dead letters.",
}


class ReasonForm(forms.Form):
    """Why an operator acts. It is kept with the job."""

    reason = forms.CharField(
        max_length=500, widget=forms.TextInput(attrs={"class": "vTextField", "autofocus": True})
    )

    def __init__(self, action: Action, *args: Any) -> None:
        super().__init__(*args)
        self.fields["reason"].required = action is Action.REPLAY


class JobAdmin(ReadOnlyAdmin):
    list_display = (
        show.short_id, "task", "queue", show.tenant, show.state, show.key, "attempts",
        show.waited, show.ran, show.created,
    )  # fmt: skip
    list_filter = (TenantFilter, StateFilter, DeadLetterFilter, QueueFilter, TaskFilter)
    list_per_page = 50
    sortable_by = ()
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    search_fields = ("id",)
    search_help_text = "A whole job id or a whole idempotency key."
    actions = ("cancel_selected", "replay_selected", "dismiss_selected")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[KeysetChangeList]:
        return KeysetChangeList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        return Job.objects.annotate(now=Now())

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        return (queryset.filter(pk__in=search(term)) if term else queryset), False

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest) -> bool:
        """The filters, nothing else: a lookup on a payload would tell what is masked in it."""
        return lookup in {f.parameter_name for f in self.list_filter}

    def has_operate_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("tasks.operate_job")

    def has_enqueue_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("tasks.add_job")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """What a job has: no empty result beside an error, no reasons nobody gave."""
        optional = {
            "waits_for": obj.state in (State.QUEUED, State.DISPATCHED),
            (show.hold_reason, show.held): obj.hold_reason,
            show.cancel_reason: obj.cancel_reason,
            show.progress: obj.progress is not None,
            show.result: obj.finished_at and not obj.failure and not obj.cancel_reason,
            show.error: obj.error_type or obj.error_message,
        }
        return [
            (None, {"fields": [
                (show.state, show.waited, show.ran, show.created),
                ("task", "queue", show.tenant, "priority"),
                (show.key, "ordering_key"),
                *(field for field, given in optional.items() if given),
                show.payload,
            ]}),
            ("Times", {"fields": [
                (show.run_at, show.start_by, show.lease),
                (show.started, show.claimed, show.finished),
            ]}),
            ("Runs", {"fields": [
                ("attempts", "crashes", "crashes_in_batch", "fence", "dispatch_no"),
                ("worker", "release"),
            ]}),
        ]  # fmt: skip

    @admin.display(description="waits for")
    def waits_for(self, job: Any) -> SafeString | str:
        waiting = waiting_for(job)
        if waiting is None:
            return show.BLANK
        text = f"{waiting.waits_for}: {waiting.detail}"
        if waiting.estimate_s is not None:
            text += f" In about {show.duration(timedelta(seconds=waiting.estimate_s))}."
        if waiting.behind is None:
            return text
        url = reverse("admin:tasks_job_change", args=[waiting.behind])
        return format_html('{} <a href="{}">Look at that job</a>', text, url)

    # --- pages ---

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("enqueue/", view(self.enqueue_view), name="tasks_job_enqueue"),
            path("operate/<str:action>/", view(self.operate_view), name="tasks_job_operate"),
            path("cancel/", view(self.cancel_matching_view), name="tasks_job_cancel_matching"),
            *super().get_urls(),
        ]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        mine = {
            "title": "Jobs",
            "may_enqueue": self.has_enqueue_permission(request),
            "cancel_all_url": self.cancel_all_url(request),
        }
        return super().changelist_view(request, mine | (extra_context or {}))

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        job = self.get_object(request, object_id)
        mine = self.around_the_job(request, job) if job else {}
        return super().change_view(request, object_id, form_url, mine | (extra_context or {}))

    def around_the_job(self, request: HttpRequest, job: Job) -> dict[str, Any]:
        may_operate = self.has_operate_permission(request)
        return {
            "title": job.task,
            "subtitle": str(job.id),
            # A replay counts attempts from zero; the history goes on.
            "attempts": job.history.annotate(
                nth=Window(RowNumber(), order_by=F("fence").asc())
            ).order_by("-fence")[:HISTORY_ROWS],
            "steps": shortened(job.steps, "result").order_by("-id")[:HISTORY_ROWS],
            "outputs": shortened(job.outputs, "data").order_by("-seq")[:HISTORY_ROWS],
            "operator_actions": job.actions.order_by("-id")[:HISTORY_ROWS],
            "flower_url": show.flower_url(job),
            "buttons": [
                (action, operate_url(action, job.id))
                for action in show.possible_actions(job)
                if may_operate
            ],
        }

    def enqueue_view(self, request: HttpRequest) -> HttpResponse:
        if not self.has_enqueue_permission(request):
            raise PermissionDenied
        tasks = ledger_tasks()
        name = request.GET.get("task")
        if name is None:
            return self.page(
                request,
                "choose_task.html",
                "Enqueue a job",
                tasks=[offer(task) for task in tasks.values()],
            )
        if name not in tasks:
            raise Http404(f"no task {name!r} is registered here")
        form = EnqueueForm(tasks[name], request.POST if request.method == "POST" else None)
        answer = form.enqueue() if form.is_valid() else None
        if answer is not None:
            return self.answered(request, answer)
        return self.page(
            request, "enqueue.html", f"Enqueue {name}", form=form,
            parameters=parameters_of(tasks[name]),
        )  # fmt: skip

    def answered(self, request: HttpRequest, answer: Enqueued) -> HttpResponse:
        url = reverse("admin:tasks_job_change", args=[answer.job_id])
        says = (
            'Created job <a href="{}">{}</a>.'
            if answer.created
            else 'A repeat: job <a href="{}">{}</a> answers, {}. Nothing new was created.'
        )
        level = messages.SUCCESS if answer.created else messages.WARNING
        self.message_user(request, format_html(says, url, answer.job_id, answer.state), level)
        may_look = self.has_view_permission(request)
        return HttpResponseRedirect(url if may_look else request.get_full_path())

    def operate_view(self, request: HttpRequest, action: str) -> HttpResponse:
        if not self.has_operate_permission(request):
            raise PermissionDenied
        if action not in set(Action):
            raise Http404
        return self.operate_on(request, Action(action))

    @admin.action(description="Cancel selected jobs", permissions=["operate"])
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse:
        return self.ask_for_reason(request, Action.CANCEL)

    @admin.action(description="Replay selected failed jobs", permissions=["operate"])
    def replay_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse:
        return self.ask_for_reason(request, Action.REPLAY)

    @admin.action(description="Dismiss selected dead letters", permissions=["operate"])
    def dismiss_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse:
        return self.ask_for_reason(request, Action.DISMISS)

    def ask_for_reason(
        self, request: HttpRequest, action: Action, form: ReasonForm | None = None
    ) -> HttpResponse:
        ids = chosen(request)
        return self.page(
            request,
            "operate.html",
            f"{action.capitalize()} {counted(len(ids), 'job')}",
            action=action,
            explained=EXPLAINED[action],
            form=form or ReasonForm(action),
            jobs=self.get_queryset(request).filter(pk__in=ids).order_by("-seq"),
            ids=ids,
            checkbox=ACTION_CHECKBOX_NAME,
            operate_url=operate_url(action),
            back=way_back(request, ids),
        )

    def operate_on(self, request: HttpRequest, action: Action) -> HttpResponse:
        form = ReasonForm(action, request.POST if request.method == "POST" else None)
        if not form.is_valid():
            return self.ask_for_reason(request, action, form)
        ids = chosen(request)
        answers = operate(
            action, ids, actor=request.user.get_username(), reason=form.cleaned_data["reason"]
        )
        self.tell(request, action, answers)
        return HttpResponseRedirect(way_back(request, ids))

    def cancel_all_url(self, request: HttpRequest) -> str | None:
        """Where a filtered list of unfinished jobs can be cancelled as a whole."""
        filters = request.GET.dict()
        if not self.has_operate_permission(request) or not selection_of(filters, timezone.now()):
            return None
        return f"{reverse('admin:tasks_job_cancel_matching')}?{urlencode(filters)}"

    def cancel_matching_view(self, request: HttpRequest) -> HttpResponse:
        """Cancels what had been accepted when the operator saw how many it is."""
        if not self.has_operate_permission(request):
            raise PermissionDenied
        given = (request.POST if request.method == "POST" else request.GET).dict()
        try:
            before = moment(given.get("created_before")) or sql.now()
        except ValueError as exc:
            raise Http404("no such moment") from exc
        selection = selection_of(given, before)
        if selection is None:
            raise Http404("name a task, a queue or a tenant")
        form = ReasonForm(Action.CANCEL, request.POST if request.method == "POST" else None)
        form.fields["reason"].required = True
        if not form.is_valid():
            jobs = counted(ledger.count_selected(selection), "job")
            filters = {name: value for name, value in vars(selection).items() if value is not None}
            filters["created_before"] = before.isoformat()
            return self.page(
                request, "cancel_matching.html", f"Cancel {jobs}", form=form, filters=filters,
                explained=EXPLAINED[Action.CANCEL], back=self.list_of(selection),
            )  # fmt: skip
        done, more = cancel_matching(
            selection, actor=request.user.get_username(), reason=form.cleaned_data["reason"],
            batches=BATCHES,
        )  # fmt: skip
        self.tell_of_many(request, done, more)
        return HttpResponseRedirect(self.list_of(selection))

    def list_of(self, selection: Selection) -> str:
        names = ("task", "queue", "tenant", "state")
        filters = {name: getattr(selection, name) for name in names}
        filters = {name: value for name, value in filters.items() if value is not None}
        return f"{reverse('admin:tasks_job_changelist')}?{urlencode(filters)}"

    def tell_of_many(self, request: HttpRequest, done: CancelledMany, more: bool) -> None:
        self.message_user(request, f"Cancelled: {counted(done.cancelled, 'job')}.")
        if done.asked:
            self.message_user(request, f"Asked to stop: {counted(done.asked, 'running job')}.")
        if more:
            self.message_user(request, "Some are left: cancel once more.", messages.WARNING)

    def tell(self, request: HttpRequest, action: Action, answers: Answers) -> None:
        if answers.done:
            done = f"{DONE[action]}: {counted(len(answers.done), 'job')}."
            self.message_user(request, done, messages.SUCCESS)
        if answers.asked:
            asked = f"Asked to stop: {counted(len(answers.asked), 'running job')}."
            self.message_user(request, asked, messages.SUCCESS)
        for why, ids in answers.refused.items():
            refused = f"{NOT_DONE[action]}: {counted(len(ids), 'job')} ({why})."
            self.message_user(request, refused, messages.WARNING)

    def page(
        self, request: HttpRequest, template: str, title: str, **context: Any
    ) -> TemplateResponse:
        known = {**self.admin_site.each_context(request), "opts": self.opts, "media": self.media}
        return TemplateResponse(
            request, f"admin/tasks/job/{template}", {**known, "title": title, **context}
        )


def shortened(rows: Any, field: str) -> QuerySet[Any]:
    """With the beginning of that JSON as ``shown``: a hundred whole ones can be 25 MiB."""
    text = Left(Cast(field, TextField()), SHOWN_MAX)
    return rows.defer(field).annotate(shown=text)  # type: ignore[no-any-return]


def operate_url(action: Action, *job_ids: UUID) -> str:
    url = reverse("admin:tasks_job_operate", args=[action])
    selected = urlencode([(ACTION_CHECKBOX_NAME, job_id) for job_id in job_ids])
    return f"{url}?{selected}" if selected else url


def chosen(request: HttpRequest) -> list[UUID]:
    """The jobs that were ticked, or the one of the button; what is no id is nobody's job.

    Not the filtered list: a job may have left it since the page was shown, and the operator
    is to hear why nothing happened.
    """
    given = request.POST if request.method == "POST" else request.GET
    try:
        return [UUID(text) for text in given.getlist(ACTION_CHECKBOX_NAME)]
    except ValueError:
        raise Http404("not a job id") from None


def way_back(request: HttpRequest, ids: Sequence[UUID]) -> str:
    """To the list as it was filtered, or to the only job."""
    listed = reverse("admin:tasks_job_changelist")
    if request.path == listed:
        return request.get_full_path()
    back = request.POST.get("back", "")
    if url_has_allowed_host_and_scheme(back, None):
        return back
    return reverse("admin:tasks_job_change", args=ids) if len(ids) == 1 else listed


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
