"""The project's users in the admin, with groups and permissions."""

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin

from project.models import User

admin.site.register(User, UserAdmin)
