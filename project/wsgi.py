"""The entry point of gunicorn."""

import os

from django.core.wsgi import get_wsgi_application
from django.urls import get_resolver

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
application = get_wsgi_application()
# Now, not in the first requests: fifty at once would import it side by side.
_ = get_resolver().url_patterns

# They need the application above.
from tasks.environment import refuse_foreign_ledger  # noqa: E402
from tasks.health import WATCH  # noqa: E402

refuse_foreign_ledger()
WATCH.start()
