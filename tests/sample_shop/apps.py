"""The Django app."""

from django.apps import AppConfig


class SampleShopConfig(AppConfig):
    name = "tests.sample_shop"
    label = "tests_sample_shop"  # "shop" is left to an app of the project
