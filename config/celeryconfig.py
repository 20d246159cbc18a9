"""Celery's settings, each with its reason. Django is not imported here."""

import os

from kombu import Queue

from config.environment import value as _value
from config.topology import TOPOLOGY


def _verified(url: str) -> str:
    """``rediss://`` that says nothing of certificates would accept any: kombu checks none."""
    if not url.startswith("rediss://") or "ssl_cert_reqs=" in url:
        return url
    return f"{url}{'&' if '?' in url else '?'}ssl_cert_reqs=required"


# --- The broker ---------------------------------------------------------------------------

# Several URLs, separated by semicolons, are tried in turn.
broker_url = ";".join(map(_verified, _value("BROKER_URL", "redis://127.0.0.1:6379/0").split(";")))
# The command `celery` copies BROKER_URL, or what -b says, to this variable, and it wins over
# everything here: a worker would check no certificate, and not read BROKER_URL_FILE.
_copied = os.environ.get("CELERY_BROKER_URL")
if _copied:
    if _copied != os.environ.get("BROKER_URL"):
        broker_url = ";".join(map(_verified, _copied.split(";")))
    os.environ["CELERY_BROKER_URL"] = broker_url

# Seconds. Nothing of ours may wait long for a broker that accepts connections and then says
# nothing: kombu's default is for ever. The relay is the only one who publishes jobs, and it
# returns to the ledger what it cannot publish.
broker_connection_timeout = 1.0

_IS_REDIS = broker_url.startswith(("redis://", "rediss://"))
_REDIS_OPTIONS = {
    # Before every key, so that several installations can share a server.
    "global_keyprefix": os.environ.get("BROKER_PREFIX", ""),
    "socket_connect_timeout": 1.0,
    # A mute broker is found out after this. More than the 1 s for which an idle BRPOP waits.
    "socket_timeout": 1.5,
    "socket_keepalive": True,
    # A connection attempt that fails fails; whoever publishes decides whether to try again.
    "max_retries": 0,
    # Unacked messages come back after this. Longer than any run, or a run is started twice.
    "visibility_timeout": TOPOLOGY.visibility_timeout_s,
    # How often a worker looks for them: each 10 s. The default looks each 100 s.
    "unacked_restore_interval": 10,
    "unacked_restore_throttle": 1,
}
_AMQP_OPTIONS = {
    # Before every name on the broker, for the same reason.
    "name_prefix": os.environ.get("BROKER_PREFIX", ""),
    # Whether it took a message, RabbitMQ says only when asked to; without, a message to a broker
    # that is about to die, or refuses it, is lost without an error.
    "confirm_publish": True,
    # Seconds for an answer, also to that question. A confirm may wait for a disk.
    "answers_within_s": 5.0,
    # Seconds until a write into a connection that nobody reads is given up.
    "write_timeout": 5.0,
    "max_retries": 0,
}
_IS_AMQP = broker_url.startswith(("amqp://", "amqps://", "pyamqp://"))
broker_transport_options = _REDIS_OPTIONS if _IS_REDIS else _AMQP_OPTIONS if _IS_AMQP else {}
# RabbitMQ only. Twice this long after the last sign of life a connection is dead to both sides;
# with the default of 120 s a worker would sit before a dead broker for four minutes. A pool that
# blocks the loop (solo) needs more than its longest run.
broker_heartbeat = 20.0

# A worker outlives any outage of its broker. The default gives up after 100 tries and exits.
broker_connection_retry_on_startup = True
broker_connection_max_retries = None
# RabbitMQ closes the channel of whoever holds a message for longer than its consumer_timeout.
# Celery's default takes that for fatal, and the worker exits with all that runs in it.
broker_channel_error_retry = True

# One more try, at once, for a pooled connection that died since its last use.
task_publish_retry = True
task_publish_retry_policy = {
    "max_retries": 1,
    "interval_start": 0,
    "interval_step": 0.1,
    "interval_max": 0.1,
}

# Seconds. With all pooled connections in use, fail like a broker that is away.
broker_pool_acquire_timeout = 1.0

# --- Queues -------------------------------------------------------------------------------

task_default_queue = "default"
# A worker without -Q takes from all of these.
task_queues = [Queue(name, routing_key=name) for name in TOPOLOGY.queues]
# A queue missing in the topology works, unlimited; refusing would strand its jobs.
task_create_missing_queues = True

# --- Messages -----------------------------------------------------------------------------

# Only JSON: unpickling a message means running what it says.
task_serializer = result_serializer = event_serializer = "json"
accept_content = result_accept_content = ["json"]

# --- Runs ---------------------------------------------------------------------------------

# A message is acked after its run, so it survives the death of the worker before the claim.
task_acks_late = True
# A failed run is an outcome, and the ledger has it: its message has nothing more to do.
task_acks_on_failure = True
task_acks_on_timeout = True
# A killed child: the lease ends and the relay queues the job again, counting the crash.
# Requeued by the broker, a job that kills its process would do so for ever.
task_reject_on_worker_lost = False
# A second owner of retries that knows neither the ledger nor the death of a whole worker.
task_retry_on_worker_lost = False
# A worker holds only the messages that it runs; what waits, waits in the ledger.
worker_prefetch_multiplier = 1
# Runs go on when the broker is lost: their claim is in the ledger, and a message that is
# delivered again meets a live lease and steps back.
worker_cancel_long_running_tasks_on_connection_loss = False
# Not set, on purpose: worker_max_memory_per_child. It ends a child after a run, and a job
# that needs more memory than there is dies long before.

# --- Results ------------------------------------------------------------------------------

# The ledger is the result of a job. Plain tasks store none.
result_backend = "tasks.results.LedgerBackend"
task_ignore_result = False
task_store_errors_even_if_ignored = True
# The ledger knows what runs; a second record would only be a second truth.
task_track_started = False

# --- Watching -----------------------------------------------------------------------------

# Off until somebody watches: an event is a round trip to the broker, several per job. Flower
# switches them on in every worker it sees.
worker_send_task_events = False
# Jobs are published by the relay, and the ledger says when.
task_send_sent_event = False
# An event nobody fetched within 5 s is stale, and a queue of events whose reader has been away
# for 60 s is deleted: a stopped Flower must not fill the broker.
event_queue_ttl = 5.0
event_queue_expires = 60.0
# Replies to remote control commands nobody waits for any more.
control_queue_ttl = 60.0
control_queue_expires = 10.0

# --- The process --------------------------------------------------------------------------

# Logging is the project's.
worker_hijack_root_logger = False
worker_redirect_stdouts = False
# Keeps what is no job of ours instead of deleting it or dying of it.
worker_consumer = "tasks.consumer.Consumer"
enable_utc = True
