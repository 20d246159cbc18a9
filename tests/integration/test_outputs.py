"""What ``.emit`` wrote, as readers page through it and as the admin shows it."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from project.models import User
from tasks.models import Job, Output, Step
from tasks.states import State
from tests.callers import Caller, api_client, person
from tests.job_rows import job_row

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Caller:
    return api_client("acme")


def job_with(outputs: dict[int, Any], state: State = State.RUNNING) -> Job:
    job = job_row(state, tenant="acme")
    Output.objects.bulk_create([Output(job=job, seq=s, data=d) for s, d in outputs.items()])
    return job


def seqs(answer: Any) -> list[int]:
    return [output["seq"] for output in answer.json()["outputs"]]


def test_outputs_come_in_the_order_of_their_number_with_data_time_and_state(acme: Caller) -> None:
    job = job_with({2: {"b": 1, "a": [None]}, 1: "first"})
    body = acme.get(f"/jobs/{job.id}/outputs").json()
    assert [(o["seq"], o["data"]) for o in body["outputs"]] == [
        (1, "first"),
        (2, {"b": 1, "a": [None]}),
    ]
    assert list(body["outputs"][1]["data"]) == ["b", "a"]
    assert all(set(output) == {"seq", "data", "at"} for output in body["outputs"])
    assert (body["next"], body["state"]) == (None, "running")


def test_pages_lead_to_every_output_once(acme: Caller) -> None:
    job = job_with(dict.fromkeys(range(-3, 250), "x"), State.SUCCEEDED)
    path, seen, pages = f"/jobs/{job.id}/outputs", [], 0
    answer = acme.get(path)
    while True:
        seen += seqs(answer)
        pages += 1
        after = answer.json()["next"]
        if after is None:
            break
        answer = acme.get(f"{path}?after={after}")
    assert (seen, pages) == (list(range(-3, 250)), 3)
    assert answer.json()["state"] == "succeeded"


def test_a_reader_goes_on_after_the_last_it_has_seen(acme: Caller) -> None:
    job = job_with({1: "a", 2: "b"})
    assert seqs(acme.get(f"/jobs/{job.id}/outputs?after=2")) == []
    Output.objects.create(job=job, seq=3, data="c")
    assert seqs(acme.get(f"/jobs/{job.id}/outputs?after=2")) == [3]


@pytest.mark.parametrize(("count", "status"), [(1, 200), (500, 200), (501, 422), (0, 422)])
def test_a_page_has_a_limit(acme: Caller, count: int, status: int) -> None:
    job = job_with(dict.fromkeys(range(501), "x"))
    answer = acme.get(f"/jobs/{job.id}/outputs?limit={count}")
    assert answer.status_code == status
    if status == 200:
        assert (len(seqs(answer)), answer.json()["next"]) == (count, count - 1)


def test_a_page_of_large_outputs_is_short_and_never_empty(acme: Caller) -> None:
    large = "x" * 400_000
    job = job_with({1: large, 2: large, 3: large, 4: "y" * 2_000_000, 5: "end"})
    path, seen = f"/jobs/{job.id}/outputs", []
    after = -1
    while after is not None:
        answer = acme.get(f"{path}?after={after}")
        seen.append(seqs(answer))
        after = answer.json()["next"]
    assert seen == [[1, 2], [3], [4], [5]]


@pytest.mark.parametrize("after", ["x", "1.5", str(2**63), "-" + str(2**63 + 1)])
def test_a_place_that_is_no_number_is_422(acme: Caller, after: str) -> None:
    job = job_with({1: "a"})
    assert acme.get(f"/jobs/{job.id}/outputs?after={after}").json()["path"] == "after"


def test_outputs_of_another_tenant_do_not_exist(acme: Caller) -> None:
    job = job_with({1: "secret"})
    for caller in (api_client("globex"), api_client("globex", "read,operate")):
        answer = caller.get(f"/jobs/{job.id}/outputs")
        assert (answer.status_code, answer.json()["type"]) == (404, "/problems/not-found")
    assert seqs(person("view_job", "operate_job").get(f"/jobs/{job.id}/outputs")) == [1]
    assert acme.get("/jobs/7/outputs").status_code == 404
    assert api_client("acme", "enqueue").get(f"/jobs/{job.id}/outputs").status_code == 403


def test_the_page_of_a_job_shows_its_steps_and_its_latest_outputs(client: Client) -> None:
    client.force_login(User.objects.create_superuser("ada"))
    job = job_with({n: f"<b>output {n}</b>" for n in range(1, 121)} | {200: "x" * 100_000})
    Step.objects.create(job=job, name="charge the card", fence=1)
    answer = client.get(reverse("admin:tasks_job_change", args=[job.id]))
    page = answer.content.decode()
    assert "charge the card" in page
    assert "&lt;b&gt;output 120&lt;/b&gt;" in page
    assert "output 20&lt;" not in page
    assert len(answer.context["outputs"]) == 100
    assert len(page) < 100_000
