"""A worker that loads this gets its unacked messages back after 2 s, as after a long run."""

from celery import current_app

current_app.conf.broker_transport_options = {
    **current_app.conf.broker_transport_options,
    "visibility_timeout": 2,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
}
