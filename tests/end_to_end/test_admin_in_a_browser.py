"""The admin as a person meets it: a real browser, a real server, a keyboard."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

import tests.ledger_tasks  # noqa: F401  (registers the tasks)
from project.models import User
from tasks.models import Job, OperatorAction
from tasks.states import State
from tests.job_rows import job_row

pytestmark = pytest.mark.django_db(transaction=True)

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
SIZE = ViewportSize(width=1200, height=700)
PICTURE_MAX_BYTES = 150_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    if chromium is None:
        if os.environ.get("CI"):
            pytest.fail("chromium is not installed")
        pytest.skip("chromium is not installed")
    with pytest.MonkeyPatch.context() as environment, sync_playwright() as playwright:
        # Playwright runs an event loop in this thread, and Django would take us for a coroutine.
        environment.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        running = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def page(browser: Browser, live_server: Any, client: Any) -> Iterator[Page]:
    """Logged in. A test fails on any error in the browser's console."""
    client.force_login(User.objects.create_superuser("ada"))
    context = browser.new_context(viewport=SIZE, base_url=live_server.url)
    cookie = client.cookies["sessionid"].value
    context.add_cookies([{"name": "sessionid", "value": cookie, "url": live_server.url}])
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("response", lambda r: problems.append(f"{r.status} {r.url}") if bad(r) else None)
    yield page
    context.close()
    assert problems == []


def bad(response: Any) -> bool:
    return response.status >= 400 and not response.url.endswith("/favicon.ico")


def test_a_job_is_enqueued_seen_and_cancelled(page: Page) -> None:
    page.goto("/admin/tasks/job/")
    page.click("text=Enqueue a job")
    page.click("text=t.trace")
    page.fill("[name=payload]", '{"note": 7}')
    page.click("text=Enqueue >> visible=true >> nth=-1")
    assert "$.note" in page.inner_text(".errorlist")
    page.fill("[name=payload]", '{"note": "by hand"}')
    page.click("input[value=Enqueue]")
    assert "Created job" in page.inner_text(".messagelist")
    page.click(".object-tools >> text=Cancel")
    page.fill("[name=reason]", "not needed")
    page.click("input[value=Cancel]")
    assert "Cancelled: 1 job." in page.inner_text(".messagelist")
    assert "cancelled" in page.inner_text(".field-state")
    assert Job.objects.get().state == State.CANCELLED
    assert OperatorAction.objects.get().actor == "ada"


def test_a_double_click_makes_one_job(page: Page) -> None:
    page.goto("/admin/tasks/job/enqueue/?task=t.trace")
    page.fill("[name=payload]", '{"note": "once"}')
    page.dblclick("input[value=Enqueue]")
    page.wait_for_selector(".messagelist")
    assert Job.objects.count() == 1


def test_selected_jobs_are_replayed_with_the_keyboard_alone(page: Page) -> None:
    job_row(State.FAILED)
    page.goto("/admin/tasks/job/?dead_letter=1")
    page.focus(".action-select")
    page.keyboard.press("Space")
    page.focus("select[name=action]")
    page.keyboard.type("Replay")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("[name=reason]")
    page.keyboard.type("the bank is back")  # the field has the focus
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Queued again: 1 job.")
    assert "dead_letter=1" in page.url
    assert OperatorAction.objects.get().reason == "the bank is back"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_badges_can_be_read_in_both_themes(page: Page, theme: Any) -> None:
    for state in State:
        job_row(state)
    page.emulate_media(color_scheme=theme)
    page.goto("/admin/tasks/job/")
    contrasts = page.eval_on_selector_all(".badge", CONTRAST)
    assert len(contrasts) == len(State)
    assert min(contrasts) >= 4.5  # WCAG 2, level AA


# Of the text to its background, after WCAG 2; a canvas turns any CSS colour into numbers.
CONTRAST = """badges => {
    const pen = document.createElement('canvas').getContext('2d');
    const light = colour => {
        pen.clearRect(0, 0, 1, 1);
        pen.fillStyle = colour;
        pen.fillRect(0, 0, 1, 1);
        const parts = [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3).map(part => part / 255)
            .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
    };
    return badges.map(badge => {
        const style = getComputedStyle(badge);
        const [a, b] = [light(style.color), light(style.backgroundColor)].sort((x, y) => y - x);
        return (a + 0.05) / (b + 0.05);
    });
}"""


def test_the_list_fits_the_picture_of_the_readme(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``PICTURES=docs/images`` keeps it."""
    monkeypatch.setattr("tasks.job_list.ledger_tasks", lambda: {"orders.tasks.capture": None})
    captures_of_a_shop()
    page.goto("/admin/tasks/job/")
    page.click("#toggle-nav-sidebar")
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(400)  # ms, for the sidebar to slide away
    picture = Path(os.environ.get("PICTURES", tmp_path)) / "admin.png"
    page.screenshot(path=picture)
    assert picture.stat().st_size < PICTURE_MAX_BYTES
    table = "document.querySelector('#changelist .results')"
    assert page.evaluate(f"{table}.scrollWidth <= {table}.clientWidth")


def captures_of_a_shop() -> None:
    """A quarter of an hour of a shop: most went well, one waits for an operator."""
    capture(State.QUEUED, 1051, age_s=1)
    capture(State.DISPATCHED, 1050, age_s=2)
    capture(State.RUNNING, 1049, age_s=3)
    capture(State.SUCCEEDED, 1048, age_s=14)
    capture(State.FAILED, 1047, age_s=31)
    capture(State.SUCCEEDED, 1046, age_s=47)
    capture(State.CANCELLED, 1045, age_s=80)
    later = datetime.now(UTC) + timedelta(minutes=25)
    capture(State.QUEUED, 1044, age_s=96, due=False, run_at=later)
    capture(State.QUEUED, 1043, age_s=120, hold_reason="no live worker knows this task")
    for number in range(1042, 1020, -1):
        capture(State.SUCCEEDED, number, age_s=(1054 - number) * 11.7)


def capture(state: State, order_id: int, *, age_s: float, **fields: Any) -> None:
    job_row(
        state,
        age_s=age_s,
        task="orders.tasks.capture",
        queue="payments",
        tenant="acme" if order_id % 3 else "globex",
        idempotency_key=f"capture:{order_id}",
        payload={"order_id": order_id, "amount_cents": 4990, "card": "4242424242424242"},
        **fields,
    )
