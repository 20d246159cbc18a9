"""The admin: what it shows, what it hides, what it lets people do, and what it costs."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

import tests.ledger_tasks
import tests.published_tasks  # noqa: F401  (both register tasks)
from project.models import User
from tasks import ledger
from tasks.clients import Scope, caller_of_token
from tasks.job_list import KeysetChangeList
from tasks.models import (
    ApiClient,
    Attempt,
    Job,
    OperatorAction,
    ParkedMessage,
    Relay,
    Worker,
)
from tasks.states import State
from tests.job_rows import job_row

pytestmark = pytest.mark.django_db

LIST = "/admin/tasks/job/"
CARD = "4242424242424242"


@pytest.fixture
def admin(client: Client) -> Client:
    client.force_login(User.objects.create_superuser("ada"))
    return client


def test_the_bare_address_leads_to_the_admin(client: Client) -> None:
    answer = client.get("/")
    assert (answer.status_code, answer.headers["Location"]) == (302, "/admin/")


def person(client: Client, *permissions: str) -> Client:
    user = User.objects.create_user("bob", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client.force_login(user)
    return client


def page_of(job: Job) -> str:
    return reverse("admin:tasks_job_change", args=[job.id])


def listed(answer: Any) -> list[UUID]:
    return [job.id for job in answer.context["cl"].result_list]


def said(answer: Any) -> list[str]:
    return [str(message) for message in answer.context["messages"]]


def act(client: Client, action: str, *jobs: Job, reason: str = "because") -> list[str]:
    """Send the form with the reason, and read what the next page says."""
    ids = [job.id for job in jobs]
    return said(
        client.post(
            f"{LIST}operate/{action}/", {"_selected_action": ids, "reason": reason}, follow=True
        )
    )


# --- the list ----------------------------------------------------------------------------


def test_the_list_shows_the_newest_jobs_first(admin: Client) -> None:
    old, new = job_row(age_s=60), job_row(age_s=1)
    assert listed(admin.get(LIST)) == [new.id, old.id]


def test_an_id_that_the_caller_chose_does_not_keep_a_job_on_top(admin: Client) -> None:
    old, new = job_row(age_s=60, id=UUID(int=2**128 - 1)), job_row()
    assert listed(admin.get(LIST)) == [new.id, old.id]


def test_pages_lead_to_every_job_once_and_back(
    admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [job_row(age_s=age).id for age in range(120)]
    seen, pages, answer = [], 0, admin.get(LIST)
    while True:
        seen += listed(answer)
        pages += 1
        older = answer.context["cl"].older_url
        if older is None:
            break
        answer = admin.get(LIST + older)
    assert (seen, pages) == (jobs, 3)
    back = admin.get(LIST + answer.context["cl"].newer_url)
    assert listed(back) == jobs[50:100]
    assert listed(admin.get(LIST + back.context["cl"].newer_url)) == jobs[:50]
    assert listed(admin.get(LIST + back.context["cl"].newest_url)) == jobs[:50]


def test_a_page_does_not_shift_when_newer_jobs_arrive(admin: Client) -> None:
    jobs = [job_row(age_s=age).id for age in range(10, 70)]
    older = admin.get(LIST).context["cl"].older_url
    job_row()
    assert listed(admin.get(LIST + older)) == jobs[50:]


@pytest.mark.parametrize("size", [1, 3, 7])
def test_a_search_cut_by_its_window_goes_on_and_misses_nothing(
    admin: Client, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(KeysetChangeList, "window_size", size)
    rare = [
        job_row(State.CANCELLED if age % 5 == 0 else State.SUCCEEDED, age_s=age)
        for age in range(20)
    ]
    wanted = [job.id for job in rare if job.state == State.CANCELLED]
    answer = admin.get(f"{LIST}?state=cancelled")
    seen = listed(answer)
    while url := answer.context["cl"].older_url:
        answer = admin.get(LIST + url)
        seen += listed(answer)
    assert seen == wanted
    upwards = listed(answer)
    while url := answer.context["cl"].newer_url:
        answer = admin.get(LIST + url)
        upwards = listed(answer) + upwards
    assert upwards == wanted


def test_a_cut_page_says_how_far_it_looked(admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeysetChangeList, "window_size", 2)
    for age in range(5):
        job_row(State.SUCCEEDED, age_s=age)
    text = admin.get(f"{LIST}?state=cancelled").content.decode()
    assert re.search(r"2 jobs were looked through, back to\s+\d{4}-", text)


@pytest.mark.parametrize("query", ["state=failed", "state=on+hold", "tenant=acme"])
def test_what_an_index_has_in_order_is_found_without_a_window(
    admin: Client, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    monkeypatch.setattr(KeysetChangeList, "window_size", 1)
    job_row(State.FAILED, tenant="acme", age_s=9)
    job_row(hold_reason="its task is not known", tenant="acme", age_s=8)
    job_row(age_s=7)
    answer = admin.get(f"{LIST}?{query}")
    assert answer.context["cl"].page.cut is False
    assert len(listed(answer)) == (2 if "tenant" in query else 1)


def test_a_second_filter_beside_one_in_order_has_a_window(
    admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KeysetChangeList, "window_size", 1)
    job = job_row(State.FAILED, queue="payments", age_s=9)
    for age in range(3):
        job_row(State.FAILED, age_s=age)
        job_row(age_s=age + 0.5)
    answer = admin.get(f"{LIST}?state=failed&queue=payments")
    for _ in range(3):
        assert listed(answer) == []
        answer = admin.get(LIST + answer.context["cl"].older_url)
    assert listed(answer) == [job.id]


@pytest.mark.parametrize(
    "query",
    [
        "state=failed", "dead_letter=1", "queue=payments", "task=t.keyed", "tenant=acme",
        "state=failed&tenant=acme", "queue=payments&dead_letter=1",
    ],
)  # fmt: skip
def test_filters_find_what_they_name(admin: Client, query: str) -> None:
    job = job_row(State.FAILED, queue="payments", task="t.keyed", tenant="acme", age_s=10)
    job_row(State.SUCCEEDED)
    assert listed(admin.get(f"{LIST}?{query}")) == [job.id]


def test_a_filter_by_a_task_that_nobody_knows_any_more_still_filters(admin: Client) -> None:
    job = job_row(task="gone.task")
    job_row()
    assert listed(admin.get(f"{LIST}?task=gone.task")) == [job.id]


def test_a_lookup_cannot_guess_what_is_masked(admin: Client) -> None:
    job_row(payload={"card": CARD}, error_message=CARD)
    for lookup in ("payload__contains", "error_message__startswith", "fingerprint"):
        assert admin.get(f"{LIST}?{lookup}={CARD[:4]}").status_code == 400


def test_an_unreadable_place_leads_to_the_first_page(admin: Client) -> None:
    job = job_row()
    for place in ("upto=nonsense", f"upto={'9' * 5000}", "after="):
        assert listed(admin.get(f"{LIST}?{place}", follow=True)) == [job.id]


def test_a_place_beyond_all_numbers_is_a_place(admin: Client) -> None:
    job = job_row()
    assert listed(admin.get(f"{LIST}?upto={10**30}")) == [job.id]
    assert listed(admin.get(f"{LIST}?after={10**30}")) == []


def test_search_finds_an_id(admin: Client) -> None:
    job, _ = job_row(), job_row()
    assert listed(admin.get(LIST, {"q": f" {job.id} "})) == [job.id]


def test_search_finds_a_key_of_every_tenant_and_only_the_whole_key(admin: Client) -> None:
    found = [job_row(idempotency_key="order:7", tenant=t, age_s=1).id for t in ("", "acme", "z")]
    job_row(idempotency_key="order:77", tenant="acme")
    assert sorted(listed(admin.get(f"{LIST}?q=order:7"))) == sorted(found)
    assert listed(admin.get(f"{LIST}?q=order")) == []


def test_a_key_that_looks_like_an_id_is_found(admin: Client) -> None:
    key = str(uuid4())
    job = job_row(idempotency_key=key)
    assert listed(admin.get(f"{LIST}?q={key}")) == [job.id]


def test_each_state_is_told_by_a_word_not_by_its_colour_alone(admin: Client) -> None:
    for state in State:
        job_row(state)
    text = admin.get(LIST).content.decode()
    for state in State:
        assert re.search(rf"badge-{state}.*?</span> {state}</span>", text)


def test_the_list_does_not_fetch_what_it_does_not_show(admin: Client) -> None:
    job_row()
    with CaptureQueriesContext(connection) as queries:
        admin.get(LIST)
    [sql] = [q["sql"] for q in queries if "tasks_job" in q["sql"]]
    for column in ("payload", "result", "error_traceback", "checkpoint"):
        assert f'"{column}"' not in sql


# --- one job -----------------------------------------------------------------------------


def test_sensitive_values_are_masked_in_the_payload(admin: Client) -> None:
    job = job_row(task="published.capture", payload={"order_id": 7, "card": CARD})
    text = admin.get(page_of(job)).content.decode()
    assert CARD not in text
    assert "&quot;card&quot;: &quot;••••&quot;" in text
    assert "&quot;order_id&quot;: 7" in text


def test_a_payload_is_masked_whole_when_its_task_is_not_known(admin: Client) -> None:
    text = admin.get(page_of(job_row(task="gone", payload={"pin": CARD}))).content.decode()
    assert CARD not in text
    assert "pin" in text


def test_a_payload_cannot_inject_markup(admin: Client) -> None:
    job = job_row(payload={"note": "<script>alert(1)</script>"}, tenant="<b>", progress=["<i>"])
    assert "<script>alert(1)" not in admin.get(page_of(job)).content.decode()
    assert "<b>" not in admin.get(LIST).content.decode()


def test_the_page_shows_attempts_operator_actions_error_and_progress(admin: Client) -> None:
    job = job_row(
        State.FAILED, error_type="Declined", error_message="no money",
        error_traceback="Traceback: line 7", progress={"done": 3, "total": 9, "message": "rows"},
    )  # fmt: skip
    Attempt.objects.create(
        job=job, fence=1, number=1, outcome="failed", worker="w@1", started_at=job.created_at,
        error_type="Declined", error_message="no money", error_traceback="Traceback: line 8",
    )  # fmt: skip
    OperatorAction.objects.create(job=job, action="replay", actor="eve", reason="new card")
    text = admin.get(page_of(job)).content.decode()
    for shown in (
        "Traceback: line 7",
        "Traceback: line 8",
        "w@1",
        "eve",
        "new card",
        "3 of 9 rows",
    ):
        assert shown in text


def test_the_link_to_flower_appears_when_there_is_one(admin: Client, settings: Any) -> None:
    job = job_row()
    settings.TASKS_FLOWER_URL = "https://flower.example/root/"
    assert f'href="https://flower.example/root/task/{job.id}"' in str(
        admin.get(page_of(job)).content
    )
    for no_flower in ("", "javascript:alert(1)"):
        settings.TASKS_FLOWER_URL = no_flower
        assert "Show in Flower" not in str(admin.get(page_of(job)).content)


@pytest.mark.parametrize(
    ("state", "buttons"),
    [
        (State.QUEUED, {"cancel"}), (State.DISPATCHED, {"cancel"}), (State.RUNNING, {"cancel"}),
        (State.SUCCEEDED, set()), (State.CANCELLED, set()), (State.FAILED, {"replay", "dismiss"}),
    ],
)  # fmt: skip
def test_a_job_offers_what_its_state_allows(admin: Client, state: State, buttons: set[str]) -> None:
    text = admin.get(page_of(job_row(state))).content.decode()
    assert set(re.findall(r"operate/(\w+)/", text)) == buttons


def test_nothing_of_a_job_can_be_edited_added_or_deleted(admin: Client) -> None:
    job = job_row()
    before = Job.objects.values().get()
    assert admin.post(page_of(job), {"state": "succeeded", "queue": "x"}).status_code == 403
    assert admin.post(f"{LIST}{job.id}/delete/", {"post": "yes"}).status_code == 403
    assert admin.get(f"{LIST}add/").status_code == 403
    admin.post(LIST, {"action": "delete_selected", "_selected_action": job.id, "post": "yes"})
    assert Job.objects.values().get() == before


# --- permissions -------------------------------------------------------------------------


def test_looking_needs_the_permission_to_view_jobs(client: Client) -> None:
    job = job_row()
    person(client)
    assert client.get(LIST).status_code == 403
    assert client.get(page_of(job)).status_code == 403


def test_who_may_only_look_can_neither_operate_nor_enqueue(client: Client) -> None:
    job = job_row(State.QUEUED)
    person(client, "view_job")
    text = client.get(page_of(job)).content.decode() + client.get(LIST).content.decode()
    assert "operate/" not in text
    assert "enqueue/" not in text
    assert "Cancel selected" not in text
    chosen = {"_selected_action": job.id, "reason": "x"}
    assert client.post(f"{LIST}operate/cancel/", chosen).status_code == 403
    assert client.get(f"{LIST}enqueue/?task=t.trace").status_code == 403
    client.post(LIST, {"action": "cancel_selected", "_selected_action": job.id})
    assert Job.objects.get().state == State.QUEUED


def test_operators_need_no_other_permission_than_theirs(client: Client) -> None:
    job = job_row(State.QUEUED)
    person(client, "view_job", "operate_job")
    assert act(client, "cancel", job) == ["Cancelled: 1 job."]


# --- actions -----------------------------------------------------------------------------


def test_cancelling_records_who_and_why_and_says_what_did_not_happen(admin: Client) -> None:
    jobs = [job_row(state) for state in (State.QUEUED, State.RUNNING, State.SUCCEEDED)]
    assert act(admin, "cancel", *jobs, reason="customer left") == [
        "Cancelled: 1 job.",
        "Asked to stop: 1 running job.",
        "Not cancelled: 1 job (already succeeded).",
    ]
    done = OperatorAction.objects.get(job=jobs[0])
    assert (done.action, done.actor, done.reason) == ("cancel", "ada", "customer left")
    assert [Job.objects.get(pk=j.pk).state for j in jobs] == ["cancelled", "running", "succeeded"]


def test_a_replay_without_a_reason_is_asked_for_one(admin: Client) -> None:
    job = job_row(State.FAILED)
    answer = admin.post(f"{LIST}operate/replay/", {"_selected_action": job.id, "reason": " "})
    assert "This field is required" in answer.content.decode()
    assert Job.objects.get().state == State.FAILED


def test_a_replayed_job_is_queued_again_and_the_relay_is_told(
    admin: Client, django_capture_on_commit_callbacks: Any
) -> None:
    jobs = [job_row(State.FAILED), job_row(State.CANCELLED)]
    with django_capture_on_commit_callbacks() as hints:
        says = act(admin, "replay", *jobs)
    assert says == ["Queued again: 1 job.", "Not replayed: 1 job (cancelled, not failed)."]
    assert Job.objects.get(pk=jobs[0].pk).state == State.QUEUED
    assert [hint.job_ids for hint in hints] == [{jobs[0].id}]


def test_a_replay_says_that_a_younger_job_owns_the_key(admin: Client) -> None:
    failed = job_row(State.FAILED, idempotency_key=None, former_key="one:x", age_s=5)
    job_row(idempotency_key="one:x")
    assert act(admin, "replay", failed) == [
        "Not replayed: 1 job (a younger job owns the key by now)."
    ]


def test_dismissing_takes_a_job_off_the_dead_letters(admin: Client) -> None:
    dead, dismissed = job_row(State.FAILED), job_row(State.FAILED, dead_letter=False)
    assert act(admin, "dismiss", dead, dismissed, reason="") == [
        "Dismissed: 1 job.",
        "Not dismissed: 1 job (not a dead letter).",
    ]
    assert listed(admin.get(f"{LIST}?dead_letter=1")) == []


def test_selected_jobs_are_shown_before_anything_happens(admin: Client) -> None:
    jobs = [job_row(), job_row()]
    answer = admin.post(
        f"{LIST}?state=queued",
        {"action": "cancel_selected", "_selected_action": [j.id for j in jobs], "index": "0"},
    )
    text = answer.content.decode()
    assert all(str(job.id) in text for job in jobs)
    assert f'name="back" value="{LIST}?state=queued"' in text
    assert set(Job.objects.values_list("state", flat=True)) == {"queued"}


def test_a_job_that_left_the_filtered_list_is_not_passed_over_in_silence(admin: Client) -> None:
    job = job_row()
    chosen = {"action": "cancel_selected", "_selected_action": job.id, "index": "0"}
    ledger.cancel(job.id, actor="somebody else")
    assert str(job.id) in admin.post(f"{LIST}?state=queued", chosen).content.decode()
    assert act(admin, "cancel", job) == ["Not cancelled: 1 job (already cancelled)."]


def test_select_all_never_reaches_beyond_the_ticked_jobs(admin: Client) -> None:
    ticked, other = job_row(), job_row()
    answer = admin.post(
        LIST,
        {"action": "cancel_selected", "_selected_action": ticked.id, "index": "0",
         "select_across": "1"},
    )  # fmt: skip
    assert str(other.id) not in answer.content.decode()


def test_the_way_back_never_leads_to_another_site(admin: Client) -> None:
    job = job_row()
    for back in ("https://evil.example/", "//evil.example", "javascript:alert(1)"):
        chosen = {"_selected_action": job.id, "reason": "x", "back": back}
        answer = admin.post(f"{LIST}operate/cancel/", chosen)
        assert answer.headers["Location"] == page_of(job)


def test_ids_that_are_none_are_not_found(admin: Client) -> None:
    for url in (f"{LIST}operate/cancel/?_selected_action=x", f"{LIST}operate/destroy/"):
        assert admin.get(url).status_code == 404


def test_all_that_a_filtered_list_shows_is_cancelled_with_who_and_why(admin: Client) -> None:
    mine = [job_row(state, queue="bulk") for state in (State.QUEUED, State.RUNNING)]
    other, finished = job_row(), job_row(State.SUCCEEDED, queue="bulk")
    url = re.findall(
        r'href="([^"]+/cancel/[^"]*)"', admin.get(f"{LIST}?queue=bulk").content.decode()
    )
    page = admin.get(url[0])
    assert "Cancel 2 jobs" in page.content.decode()
    late = job_row(queue="bulk", created_at=datetime.now(UTC) + timedelta(seconds=1))
    given = {**page.context["filters"], "reason": "campaign stopped"}
    answer = admin.post(url[0], given, follow=True)
    assert [str(m) for m in answer.context["messages"]] == [
        "Cancelled: 1 job.", "Asked to stop: 1 running job.",
    ]  # fmt: skip
    assert answer.redirect_chain[0][0] == f"{LIST}?queue=bulk"
    assert {a.reason for a in OperatorAction.objects.filter(actor="ada")} == {"campaign stopped"}
    found = dict(Job.objects.values_list("id", "state"))
    assert [found[job.id] for job in (*mine, other, finished, late)] == [
        "cancelled", "running", "queued", "succeeded", "queued",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "query", ["", "?state=queued", "?queue=bulk&state=failed", "?queue=bulk&dead_letter=1",
              "?task=t.trace&q=x"],
)  # fmt: skip
def test_a_list_that_says_too_little_or_more_is_not_cancelled_as_a_whole(
    admin: Client, query: str
) -> None:
    job_row(queue="bulk")
    assert "Cancel all" not in admin.get(f"{LIST}{query}").content.decode()
    assert admin.post(f"{LIST}cancel/{query}", {"reason": "x"}).status_code == 404


def test_cancelling_all_wants_a_reason_and_the_permission(admin: Client, client: Client) -> None:
    job = job_row(queue="bulk")
    given = {"queue": "bulk", "reason": " "}
    assert "This field is required" in admin.post(f"{LIST}cancel/", given).content.decode()
    person(client, "view_job")
    assert client.post(f"{LIST}cancel/", {**given, "reason": "x"}).status_code == 403
    assert "Cancel all" not in client.get(f"{LIST}?queue=bulk").content.decode()
    assert Job.objects.get(pk=job.pk).state == State.QUEUED


def test_the_numbers_of_attempts_go_on_after_a_replay(admin: Client) -> None:
    job = job_row(State.FAILED)
    for fence, number in ((1, 1), (2, 2), (5, 1)):
        Attempt.objects.create(
            job=job, fence=fence, number=number, outcome="failed", started_at=job.created_at
        )
    rows = re.findall(r'<th scope="row">(\d[^<]*)<', admin.get(page_of(job)).content.decode())
    assert rows == ["3 (1 since the replay)", "2", "1"]


# --- enqueue a job -----------------------------------------------------------------------

FORM = f"{LIST}enqueue/"


def fill(client: Client, task: str, payload: object, **fields: Any) -> Any:
    """Open the form and send it, with its hidden key."""
    url = f"{FORM}?task={task}"
    minted = client.get(url).context["form"]["minted_key"].value()
    text = payload if isinstance(payload, str) else json.dumps(payload)
    data = {"payload": text, "minted_key": minted, "priority": 0, **fields}
    return client.post(url, data, follow=True)


def errors(answer: Any) -> dict[str, list[str]]:
    return {field: list(texts) for field, texts in answer.context["form"].errors.items()}


def test_every_ledger_task_is_offered(admin: Client) -> None:
    text = admin.get(FORM).content.decode()
    assert "?task=t.trace" in text
    assert "?task=published.capture" in text
    assert "celery." not in text


def test_the_payload_begins_as_a_skeleton_of_the_signature(admin: Client) -> None:
    form = admin.get(f"{FORM}?task=t.keyed").context["form"]
    assert json.loads(form["payload"].value()) == {"order_id": None}


def test_a_forgotten_parameter_of_the_skeleton_is_refused(admin: Client) -> None:
    answer = fill(admin, "t.keyed", {"order_id": None})
    assert "$.order_id" in errors(answer)["payload"][0]
    assert not Job.objects.exists()


def test_a_job_is_created_and_linked(admin: Client) -> None:
    answer = fill(
        admin, "t.trace", {"note": "x"}, tenant="acme", priority=5, run_at="2099-01-02T03:04"
    )
    job = Job.objects.get()
    assert (job.task, job.tenant, job.priority, job.payload) == (
        "t.trace", "acme", 5, {"note": "x"}
    )  # fmt: skip
    assert job.run_at.isoformat() == "2099-01-02T03:04:00+00:00"
    assert said(answer) == [f'Created job <a href="{page_of(job)}">{job.id}</a>.']


def test_the_same_form_sent_twice_is_one_job(admin: Client) -> None:
    url = f"{FORM}?task=t.trace"
    minted = admin.get(url).context["form"]["minted_key"].value()
    data = {"payload": '{"note": "x"}', "minted_key": minted, "priority": 0}
    first, second = (admin.post(url, data, follow=True) for _ in range(2))
    job = Job.objects.get()
    assert said(first)[0].startswith("Created")
    assert said(second)[0].startswith(f'A repeat: job <a href="{page_of(job)}">')


def test_two_forms_are_two_jobs(admin: Client) -> None:
    for _ in range(2):
        fill(admin, "t.trace", {"note": "x"})
    assert Job.objects.count() == 2


def test_a_task_that_names_its_intents_does_so_here(admin: Client) -> None:
    for _ in range(2):
        fill(admin, "t.keyed", {"order_id": 7})
    assert Job.objects.get().idempotency_key == "keyed:7"


def test_a_key_of_ones_own_wins(admin: Client) -> None:
    fill(admin, "t.keyed", {"order_id": 7}, key="mine")
    assert Job.objects.get().idempotency_key == "mine"


def test_a_conflict_names_the_fields_not_the_values(admin: Client) -> None:
    fill(admin, "t.trace", {"note": "secret-1"}, key="k")
    answer = fill(admin, "t.trace", {"note": "secret-2"}, key="k")
    [says] = errors(answer)["key"]
    assert says.endswith("differs in: note")
    assert "secret" not in says


@pytest.mark.parametrize(
    ("payload", "fields", "field"),
    [
        ('{"note": NaN}', {}, "payload"),
        ('{"note": "x", "note": "y"}', {}, "payload"),
        ("{", {}, "payload"),
        ("[]", {}, "payload"),
        ('{"note": 7}', {}, "payload"),
        ('{"note": "x", "nope": 1}', {}, "payload"),
        ('{"note": "x"}', {"key": "a b"}, "key"),
        ('{"note": "x"}', {"priority": 101}, "priority"),
        ('{"note": "x"}', {"tenant": "t" * 101}, "tenant"),
        ('{"note": "x"}', {"run_at": "soon"}, "run_at"),
    ],
)
def test_an_error_stands_at_its_field_and_nothing_is_written(
    admin: Client, payload: str, fields: dict[str, Any], field: str
) -> None:
    answer = fill(admin, "t.trace", payload, **fields)
    assert list(errors(answer)) == [field]
    assert not Job.objects.exists()


def test_an_unknown_task_has_no_form(admin: Client) -> None:
    assert admin.get(f"{FORM}?task=celery.backend_cleanup").status_code == 404


def test_who_may_enqueue_but_not_look_stays_at_the_form(client: Client) -> None:
    answer = fill(person(client, "add_job"), "t.trace", {"note": "x"})
    assert answer.status_code == 200
    assert said(answer)[0].startswith("Created")


# --- clients, workers, relays, parked messages -------------------------------------------


def test_a_token_is_shown_once_and_kept_hashed(admin: Client) -> None:
    data = {"name": "shop", "tenant": "acme", "may_enqueue": "on"}
    text = admin.post("/admin/tasks/apiclient/add/", data).content.decode()
    [token] = re.findall(r'class="token">([^<]+)<', text)
    caller = caller_of_token(token)
    assert caller is not None
    assert (caller.tenant, caller.scopes) == ("acme", frozenset({Scope.ENQUEUE}))
    client = ApiClient.objects.get()
    again = admin.get(f"/admin/tasks/apiclient/{client.pk}/change/").content.decode()
    assert token not in again
    assert client.token_hash not in again
    assert token not in str(admin.cookies) + str(dict(admin.session))


def test_a_client_keeps_its_name_and_tenant_and_can_lose_a_scope(admin: Client) -> None:
    admin.post("/admin/tasks/apiclient/add/", {"name": "shop", "tenant": "a", "may_read": "on"})
    client = ApiClient.objects.get()
    admin.post(
        f"/admin/tasks/apiclient/{client.pk}/change/",
        {"name": "other", "tenant": "b", "token_hash": "x", "may_operate": "on"},
    )
    changed = ApiClient.objects.get()
    assert (changed.name, changed.tenant, changed.token_hash) == ("shop", "a", client.token_hash)
    assert (changed.may_read, changed.may_operate) == (False, True)


def test_a_revoked_client_is_refused_and_stays_in_the_list(admin: Client) -> None:
    text = admin.post("/admin/tasks/apiclient/add/", {"name": "shop", "may_read": "on"})
    [token] = re.findall(r'class="token">([^<]+)<', text.content.decode())
    client = ApiClient.objects.get()
    url = "/admin/tasks/apiclient/"
    chosen = {"action": "revoke", "_selected_action": client.pk, "index": "0"}
    assert said(admin.post(url, chosen, follow=True)) == ["Revoked: shop."]
    assert caller_of_token(token) is None
    assert said(admin.post(url, chosen, follow=True)) == ["They were revoked already."]
    assert admin.post(f"{url}{client.pk}/delete/", {"post": "yes"}).status_code == 403


def worker_row(name: str, silent_s: int = 0, **fields: Any) -> None:
    known = {"host": "h", "pid": 1, "queues": ["bulk"], "known_tasks": [], "capacity": 2}
    Worker.objects.create(name=name, **known | fields)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE tasks_worker SET last_beat = clock_timestamp() - %s * interval '1 second'"
            " WHERE name = %s",
            [silent_s, name],
        )


def test_silent_workers_are_shown_as_lost(admin: Client) -> None:
    worker_row("here")
    worker_row("gone", silent_s=60)
    worker_row("leaving", draining=True)
    text = admin.get("/admin/tasks/worker/").content.decode()
    life = dict(re.findall(r"/worker/(\w+)/change.*?</span> (\w+)</span>", text, re.DOTALL))
    assert life == {"here": "live", "gone": "lost", "leaving": "draining"}
    assert admin.get("/admin/tasks/worker/here/change/").status_code == 200


def test_relays_are_listed(admin: Client) -> None:
    relay = Relay.objects.create(id=uuid4(), host="h", pid=7)
    assert "live" in admin.get("/admin/tasks/relay/").content.decode()
    assert admin.get(f"/admin/tasks/relay/{relay.pk}/change/").status_code == 200


@pytest.mark.parametrize(
    ("body", "shown"), [(b"[1, 2] \xc3\xa9", "[1, 2] é"), (b"\x80\x04\xff\x00\x01", "80 04ff0001")]
)
def test_a_parked_message_shows_its_bytes_as_text_or_hex(
    admin: Client, body: bytes, shown: str
) -> None:
    message = ParkedMessage.objects.create(reason="not JSON", headers="{}", body=body)
    assert admin.get("/admin/tasks/parkedmessage/").status_code == 200
    text = admin.get(f"/admin/tasks/parkedmessage/{message.pk}/change/").content.decode()
    assert shown in text


def test_a_parked_message_of_a_task_with_sensitive_arguments_shows_none(admin: Client) -> None:
    message = ParkedMessage.objects.create(
        reason="bad", task="published.capture", headers=CARD, body=CARD.encode()
    )
    url = f"/admin/tasks/parkedmessage/{message.pk}/change/"
    assert CARD not in admin.get(url).content.decode()


def test_users_of_the_project_are_in_the_admin(admin: Client) -> None:
    assert admin.get("/admin/project/user/").status_code == 200
