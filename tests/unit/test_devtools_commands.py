"""``./dev`` explains itself and hands arguments on as they are."""

from __future__ import annotations

import pytest

from devtools.__main__ import COMMANDS, main
from devtools.pytest_broker import own_database
from devtools.testing import process_arguments


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


def test_every_test_process_has_a_redis_database_of_its_own() -> None:
    env = {"BROKER_URL": "redis://:secret@127.0.0.1:7000/0", "PYTEST_XDIST_WORKER": "gw2"}
    assert own_database(env) == "redis://:secret@127.0.0.1:7000/3"


def test_another_broker_is_left_as_it_is() -> None:
    env = {"BROKER_URL": "amqp://localhost//", "PYTEST_XDIST_WORKER": "gw2"}
    assert own_database(env) == "amqp://localhost//"
