"""Imported by Python before anything else: this process lives in a shifted time.

The shift, in seconds, is a number in the file ``SHIFTED_CLOCK``, and can change at any moment.
The monotonic clock goes on, as it does on a machine whose clock is set.
"""

import datetime
import mmap
import os
import time
from typing import Any

with open(os.environ["SHIFTED_CLOCK"], "rb") as _file:
    _shift = memoryview(mmap.mmap(_file.fileno(), 8, prot=mmap.PROT_READ)).cast("d")

_time, _time_ns, _datetime = time.time, time.time_ns, datetime.datetime


class _Kind(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _datetime)


class _Shifted(_datetime, metaclass=_Kind):  # type: ignore[misc, valid-type]
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        return _datetime.fromtimestamp(time.time(), tz)

    @classmethod
    def utcnow(cls) -> Any:
        return _datetime.fromtimestamp(time.time(), datetime.UTC).replace(tzinfo=None)


time.time = lambda: _time() + _shift[0]
time.time_ns = lambda: _time_ns() + int(_shift[0] * 1e9)
datetime.datetime = _Shifted  # type: ignore[misc]
