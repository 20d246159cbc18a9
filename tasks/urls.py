"""Addresses of the job engine."""

urlpatterns: list[object] = []
