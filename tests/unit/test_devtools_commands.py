"""``./dev`` explains itself and hands arguments on as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from devtools import check, manage, running
from devtools.__main__ import COMMANDS, main
from devtools.child import ROOT, Program
from devtools.foreground import run_in_foreground
from devtools.given_servers import addresses_of
from devtools.ports import free_port
from devtools.pytest_broker import own_database
from devtools.stack import Stack, Worker, child_environment
from devtools.testing import first_round, left_out, process_arguments


def test_help_lists_every_command_that_has_a_module(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    shown = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert (f"  {name} " in shown) is command.exists


def test_no_command_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "Usage" in capsys.readouterr().out


def test_an_unknown_command_names_the_closest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chekc"]) == 2
    assert "./dev check" in capsys.readouterr().out


@pytest.mark.parametrize("chosen", [["-n", "3"], ["-n0"], ["--numprocesses=2"]])
def test_a_number_of_processes_of_the_caller_is_respected(chosen: list[str]) -> None:
    assert process_arguments(chosen) == []


@pytest.mark.parametrize("argument", ["--pdb", "-s", "tests/unit/test_x.py::test_y"])
def test_a_terminal_or_a_single_test_gets_one_process(argument: str) -> None:
    assert process_arguments([argument]) == ["-n", "0"]


def test_a_whole_run_gets_several_processes_within_bounds() -> None:
    option, number, *_ = process_arguments(["tests/unit"])
    assert option == "-n"
    assert 1 <= int(number) <= 8


def test_the_drills_run_when_they_are_named() -> None:
    assert left_out(["-k", "relay"]) == ["--ignore=tests/drills"]
    assert left_out(["tests/drills/test_drills.py"]) == []


def test_tests_that_promise_a_time_are_left_for_later(tmp_path: Path) -> None:
    assert f"--alone-later={tmp_path}" in first_round(["tests/end_to_end"], tmp_path)
    for chosen in (["-m", "long"], ["-n0"], ["tests/unit/test_keys.py::test_x"]):
        assert first_round(chosen, tmp_path) == process_arguments(chosen)


TIMED = """
import pytest

def test_quick(): pass

@pytest.mark.alone
def test_timed(): pass
"""


@pytest.mark.parametrize(("chosen", "is_left"), [("test", True), ("quick", False)])
def test_a_round_of_their_own_is_asked_for_only_where_there_are_such_tests(
    tmp_path: Path, chosen: str, is_left: bool
) -> None:
    """On a process of xdist, which is where tests are collected."""
    (tmp_path / "test_it.py").write_text(TIMED)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = alone: x\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-n", "1", "-k", chosen),
            *("-p", "no:django", "-p", "devtools.pytest_alone"),
            *(f"--alone-later={tmp_path / 'later'}", str(tmp_path)),
        ],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert (tmp_path / "later").exists() is is_left


def test_every_test_process_has_a_redis_database_of_its_own() -> None:
    env = {"BROKER_URL": "redis://:secret@127.0.0.1:7000/0", "PYTEST_XDIST_WORKER": "gw2"}
    assert own_database(env) == "redis://:secret@127.0.0.1:7000/3"


def test_another_broker_is_left_as_it_is() -> None:
    env = {"BROKER_URL": "amqp://localhost//", "PYTEST_XDIST_WORKER": "gw2"}
    assert own_database(env) == "amqp://localhost//"


def test_a_port_that_cannot_be_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["up", "--port-web", "99999"])
    assert "--port-web: '99999' is not a port: 1 to 65535" in capsys.readouterr().err


def test_check_explains_itself_and_names_its_checks(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["check", "--help"])
    shown = capsys.readouterr().out
    assert all(known.name in shown for known in check.checks())


def test_an_unknown_check_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["check", "typos"])
    assert "no such check: typos" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [name for name in ("up", "demo", "test") if COMMANDS[name].exists]
)
@pytest.mark.parametrize("variable", ["DATABASE_URL", "BROKER_URL"])
def test_a_server_that_does_not_answer_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    variable: str,
) -> None:
    port = free_port()
    scheme = {"DATABASE_URL": "postgres", "BROKER_URL": "redis"}[variable]
    monkeypatch.setenv("DATABASE_URL", "")
    monkeypatch.setenv("BROKER_URL", "")
    monkeypatch.setenv(variable, f"{scheme}://127.0.0.1:{port}/0")
    monkeypatch.setattr(running, "STACK", tmp_path / "stack.json")
    assert main([command]) == 2
    [line] = capsys.readouterr().out.splitlines()
    assert f"{variable}: nobody answers at 127.0.0.1:{port}" in line
    assert f"unset {variable}" in line


@pytest.mark.parametrize(
    ("urls", "expected"),
    [
        ("postgres://user:secret@db/name", [("db", 5432)]),
        ("sentinel://a:1;sentinel://b", [("a", 1), ("b", 26379)]),
        ("memory://", []),
        ("redis+socket:///run/redis.sock", []),
        ("postgres:///name?host=/run/postgresql", []),
        ("amqp://host:port", []),
        ("", []),
    ],
)
def test_addresses_are_read_from_urls(urls: str, expected: list[tuple[str, int]]) -> None:
    assert list(addresses_of(urls)) == expected


def test_manage_joins_the_running_stack(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(running, "STACK", tmp_path / "stack.json")
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.setenv("BROKER_URL", "redis://mine")
    with running.announced({"DATABASE_URL": "postgres://its", "BROKER_URL": "redis://its"}):
        env = manage.environment()
    assert (env["DATABASE_URL"], env["BROKER_URL"]) == ("postgres://its", "redis://mine")


def test_manage_without_a_stack_names_the_remedy_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(running, "STACK", tmp_path / "stack.json")
    monkeypatch.delenv("DATABASE_URL", raising=False)
    assert main(["manage", "migrate"]) == 1
    [line] = capsys.readouterr().out.splitlines()
    assert "./dev up is not running" in line
    assert "set DATABASE_URL" in line


@pytest.mark.parametrize(
    "arguments", [["help"], ["startapp", "shop"], ["makemigrations", "--check"], ["prune", "-h"]]
)
def test_what_needs_no_database_needs_no_stack(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str]
) -> None:
    monkeypatch.setattr(running, "STACK", tmp_path / "stack.json")
    monkeypatch.delenv("DATABASE_URL", raising=False)
    assert manage.environment(arguments)["ENVIRONMENT"] == "development"


def test_manage_needs_no_stack_when_it_has_a_database(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(running, "STACK", tmp_path / "stack.json")
    monkeypatch.setenv("DATABASE_URL", "postgres://mine")
    assert manage.environment()["DATABASE_URL"] == "postgres://mine"


INTERRUPTS_ITS_PARENT = "import os, signal; os.kill(os.getppid(), signal.SIGINT); os._exit(1)"


def test_a_program_that_people_end_with_ctrl_c_has_not_failed() -> None:
    argv = [sys.executable, "-c", INTERRUPTS_ITS_PARENT]
    assert run_in_foreground(argv, os.environ, ends_by_interrupt=True) == 0
    assert run_in_foreground(argv, os.environ) == 1


def test_the_superuser_warning_is_silent_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "error::ResourceWarning")
    code = (
        "from celery import platforms; import os, warnings; os.getuid = lambda: 0;"
        "platforms.check_privileges(['json']); warnings.warn('heard')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=child_environment(), capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    assert child_environment()["PYTHONWARNINGS"].startswith("error::ResourceWarning,")
    assert "heard" in done.stderr
    assert "superuser" not in done.stderr


@pytest.mark.parametrize("flower", [True, False])
def test_workers_send_events_where_flower_shows_them(
    monkeypatch: pytest.MonkeyPatch, flower: bool
) -> None:
    stack, started = Stack(flower=flower), list[Program]()
    monkeypatch.setattr(stack.supervisor, "start", started.append)
    stack.start_worker(Worker("default", "default"))
    assert ("-E" in started[0].argv) is flower


def test_tests_of_an_app_of_the_project_are_found(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.getini("testpaths") == ["."]
    assert "tests.py" in pytestconfig.getini("python_files")
