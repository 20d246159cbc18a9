"""What ``./dev demo --orders FILE`` accepts, and how it says what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from devtools.demo import orders_file
from devtools.demo.command import SHIPPED_ORDERS, main
from devtools.demo.comparison import is_good
from devtools.demo.orders_file import BadFile, Order, read_orders

HEADER = "order_id,amount_cents,card"
ROW = "1,500,4242424242424242"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "orders.csv"


def read(file: Path, *rows: str) -> list[Order]:
    file.write_text("\n".join(rows) + "\n")
    return read_orders(file)


def test_the_shipped_file_has_500_orders_and_some_bad_ones():
    orders = read_orders(SHIPPED_ORDERS)
    assert len(orders) == 500
    assert 20 <= sum(not is_good(order) for order in orders) <= 60


def test_columns_may_come_in_any_order_and_with_others(file: Path):
    rows = ("note,card,order_id,amount_cents", "hello,4242424242424242,1,500")
    assert read(file, *rows) == [Order(1, 500, "4242424242424242")]


def test_a_byte_order_mark_and_windows_line_ends_are_read(file: Path):
    file.write_bytes(f"\ufeff{HEADER}\r\n{ROW}\r\n".encode())
    assert read_orders(file) == [Order(1, 500, "4242424242424242")]


def test_the_same_line_twice_is_one_order(file: Path):
    assert len(read(file, HEADER, ROW, ROW)) == 1


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([HEADER, ROW, "2,ten,4242424242424242"], "row 3, column amount_cents: 'ten' is not a"),
        ([HEADER, "2,1.50,4242424242424242"], "row 2, column amount_cents: '1.50' is not a whole"),
        ([HEADER, "2,,4242424242424242"], "row 2, column amount_cents: empty, is not a whole"),
        ([HEADER, "x,5,4242424242424242"], "row 2, column order_id: 'x' is not a whole number"),
        ([HEADER, "0,5,4242424242424242"], "row 2, column order_id: 0 is not 1 or more"),
        ([HEADER, "2,5,4242-4242"], "row 2, column card: not 12 to 19 digits"),
        ([HEADER, "2,5"], "row 2, column card: not 12 to 19 digits"),
        ([HEADER, ROW + ",more"], "row 2: more values than columns"),
        ([HEADER, ROW, "1,600,4242424242424242"], "row 3, column amount_cents: order 1 differs"),
        ([HEADER, ROW, "1,500,5555555555554444"], "row 3, column card: order 1 differs from row 2"),
        (["order_id,amount"], "row 1: no column amount_cents, card"),
        ([""], "row 1: no column order_id"),
        ([HEADER], "no orders"),
    ],
)
def test_a_bad_file_is_refused_with_row_and_column(file: Path, rows: list[str], complaint: str):
    with pytest.raises(BadFile) as error:
        read(file, *rows)
    assert complaint in str(error.value)
    assert str(file) in str(error.value)


def test_a_card_number_never_stands_in_a_complaint(file: Path):
    with pytest.raises(BadFile) as error:
        read(file, HEADER, "1,5,4242 4242 4242 4242")
    assert "4242" not in str(error.value)


def test_text_that_is_not_utf8_is_refused(file: Path):
    file.write_bytes(b"order_id,amount_cents,card\n1,\xff,1\n")
    with pytest.raises(BadFile, match="not UTF-8"):
        read_orders(file)


def test_too_many_orders_are_refused(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(orders_file, "MOST_ORDERS", 2)
    with pytest.raises(BadFile, match="more than 2 orders"):
        read(file, HEADER, *(f"{n},5,4242424242424242" for n in range(1, 4)))


@pytest.mark.parametrize("name", ["missing.csv", "."])
def test_the_command_says_what_is_wrong_before_anything_starts(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["--orders", str(tmp_path / name)]) == 2
    assert "error:" in capsys.readouterr().err
