"""The example app: orders whose payments are captured in the background."""

from django.apps import AppConfig


class OrdersConfig(AppConfig):
    name = "orders"
