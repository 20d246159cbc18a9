"""Addresses of the job engine."""

from django.urls import include, path, re_path

from tasks import probes
from tasks.api import api
from tasks.problems import no_such_address, with_problems

jobs, app_name, namespace = api.urls
for address in jobs:
    assert address.callback is not None
    address.callback = with_problems(address.callback)

urlpatterns = [
    path("api/", include((jobs, app_name), namespace=namespace)),
    re_path(r"^api/", no_such_address),
    path("healthz", probes.healthz),
    path("readyz", probes.readyz),
    path("metrics", probes.metrics),
]
