"""The Django app."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    name = "tests.shop"
    label = "shop"
