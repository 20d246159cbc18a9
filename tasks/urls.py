"""Addresses of the job engine."""

from django.urls import path, re_path

from tasks import probes
from tasks.api import api
from tasks.problems import no_such_address, with_problems

# Not under the names that Django looks for in a URLconf.
addresses, api_app, api_namespace = api.urls
for address in addresses:
    assert address.callback is not None
    address.callback = with_problems(address.callback)

urlpatterns = [
    path("api/", (addresses, api_app, api_namespace)),
    re_path(r"^api/", no_such_address),
    path("healthz", probes.healthz),
    path("readyz", probes.readyz),
    path("metrics", probes.metrics),
]
