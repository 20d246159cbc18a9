"""The measured side of ``./dev bench``: one no-op task, as plain Celery and as a LedgerTask."""
