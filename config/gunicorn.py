"""The web server's settings, read by gunicorn itself."""

import os

from config.topology import WEB

# Requests only write one row, so threads of one process go far.
workers = int(os.environ.get("WEB_PROCESSES", WEB.processes))
threads = int(os.environ.get("WEB_THREADS", WEB.threads))
worker_class = "gthread"
bind = os.environ.get("WEB_BIND", "0.0.0.0:8000")
# Seconds. A request waits for the database at most 5 s and for nothing else.
timeout = 30
# Seconds for requests that run when the deploy sends TERM.
graceful_timeout = WEB.drain
keepalive = 75
accesslog = None
control_socket_disable = True  # one in the home directory would be shared by every server
