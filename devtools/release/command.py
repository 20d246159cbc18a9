"""``./dev release``: write down the schema and the statements of the code at hand.

Run it when a release is out, before its first change: the next one is tested against what it
writes (docs/migrations.md).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import django
from django.core.management import call_command

from devtools.console import say
from devtools.release import kept
from devtools.servers import Postgres


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="./dev release", description=__doc__)
    parser.add_argument("--to", type=Path, default=kept.DIRECTORY, help="the directory")
    to: Path = parser.parse_args(argv).to
    with (
        tempfile.TemporaryDirectory(prefix="celeriac-release-") as directory,
        Postgres(Path(directory) / "postgres", durable=False) as postgres,
    ):
        os.environ["DATABASE_URL"] = postgres.url
        os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
        django.setup()
        call_command("migrate", interactive=False, verbosity=0)
        # Its models are ready only now.
        from devtools.release.recording import recording

        made = recording()
        kept.write(made, to)
        from django.db import connection

        connection.close()
    say(f"{len(made.statements)} statements at {'.'.join(made.migrations[-1])}: {to}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
