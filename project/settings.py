"""Django settings. Every value that differs between deployments comes from the environment."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from config.environment import DEVELOPMENT, is_production, refuse_to_start
from config.environment import value as env
from config.topology import TOPOLOGY
from project.logging import configure_logging

BASE_DIR = Path(__file__).resolve().parent.parent


def flag(name: str, default: bool = False) -> bool:
    return env(name, str(default)).lower() in {"1", "true", "yes", "on"}


def database(url: str) -> dict[str, object]:
    """A Django database from ``postgres://user:password@host:port/name?option=value``."""
    parts = urlsplit(url)
    if parts.scheme not in {"postgres", "postgresql"}:
        raise ValueError(f"DATABASE_URL must start with postgres://, not {parts.scheme}://")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": unquote(parts.hostname or ""),
        "PORT": str(parts.port or ""),
        "CONN_MAX_AGE": 600,
        "CONN_HEALTH_CHECKS": True,
        # A host that vanished without a word is given up after 10 s, not after the kernel's 15 min.
        "OPTIONS": {
            # Parse and plan the few statements of the hot path once per connection, not per job.
            "server_side_binding": True,
            "prepare_threshold": 5 if flag("DB_PREPARED_STATEMENTS", default=True) else None,
            "connect_timeout": 5,
            "tcp_user_timeout": 10_000,
            **dict(parse_qsl(parts.query)),
        },
    }


ENVIRONMENT = env("ENVIRONMENT") or DEVELOPMENT
PRODUCTION = is_production(ENVIRONMENT)  # or anything else that is not for development
DEBUG = flag("DEBUG", default=False)
SECRET_KEY = env("SECRET_KEY") or ("" if PRODUCTION else "only-for-development")
if not SECRET_KEY:
    refuse_to_start(
        f"ENVIRONMENT is {ENVIRONMENT}, and SECRET_KEY is not set. Set SECRET_KEY or"
        ' SECRET_KEY_FILE; python3 -c "import secrets; print(secrets.token_urlsafe(48))" makes one.'
    )
ALLOWED_HOSTS = [h for h in env("ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]").split(",") if h]
CSRF_TRUSTED_ORIGINS = [o for o in env("CSRF_TRUSTED_ORIGINS").split(",") if o]
RELEASE = env("RELEASE", "dev")

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "ninja",  # the files of /api/docs, so that it loads nothing from elsewhere
    "project",
    "tasks",
    "orders",
]
MIDDLEWARE = [
    "tasks.probes.answer_machines",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "tasks.refusals.RefusalMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
ROOT_URLCONF = "project.urls"
WSGI_APPLICATION = "project.wsgi.application"
AUTH_USER_MODEL = "project.User"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": database(env("DATABASE_URL", "postgres://postgres@127.0.0.1:5432/celeriac"))
}

USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / "staticfiles"
WHITENOISE_USE_FINDERS = not PRODUCTION
DATA_UPLOAD_MAX_MEMORY_SIZE = 1024 * 1024  # bytes; four times the largest payload

if PRODUCTION:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = True
# TLS ends in a proxy, which may do both of these itself: only its people know. A given value is
# their answer, "off" and 0 as well; without one `check --deploy` asks (W004, W008).
SECURE_SSL_REDIRECT = flag("SSL_REDIRECT")
SECURE_HSTS_SECONDS = int(env("HSTS_SECONDS") or 0)
SILENCED_SYSTEM_CHECKS = [
    *(["security.W004"] if env("HSTS_SECONDS") else []),
    *(["security.W008"] if env("SSL_REDIRECT") else []),
    # Subdomains and the browsers' own list bind more hosts than this one.
    *("security.W005", "security.W021"),
]

# What the job engine needs to know of this project.
TASKS_TOPOLOGY = TOPOLOGY
TASKS_RELEASE = RELEASE
TASKS_ENVIRONMENT = ENVIRONMENT
TASKS_PULSE_DIR = env("PULSE_DIR")
TASKS_FLOWER_URL = env("FLOWER_URL")
TASKS_LEDGER_DIRECT_URL = env("LEDGER_DIRECT_URL")  # LISTEN needs a session, PgBouncer has none
TASKS_LEDGER_NOTIFY = env("LEDGER_NOTIFY", "on") != "off"

LOGGING_CONFIG = None
configure_logging(level=env("LOG_LEVEL", "INFO"), as_json=env("LOG_FORMAT") == "json")
