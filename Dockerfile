# One image for every role: the command picks it (see docker-compose.yml).
# Another base must bring the Python of .python-version: --build-arg BASE_IMAGE=...
ARG BASE_IMAGE=python:3.13-slim-bookworm

FROM ${BASE_IMAGE} AS build
ENV UV_PROJECT_ENVIRONMENT=/opt/venv \
    UV_COMPILE_BYTECODE=1 \
    UV_LINK_MODE=copy \
    UV_PYTHON_DOWNLOADS=never
RUN pip install --no-cache-dir "uv>=0.9,<1"
WORKDIR /app
# What the lock says, and nothing newer. A layer of its own: code changes more often.
COPY pyproject.toml uv.lock ./
RUN uv sync --frozen --no-dev --no-cache
COPY . .
# Needs settings, and none of its secrets.
RUN SECRET_KEY=unused-while-collecting /opt/venv/bin/python manage.py collectstatic --no-input

FROM ${BASE_IMAGE}
ARG RELEASE=dev
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PULSE_DIR=/tmp/pulse \
    RELEASE=${RELEASE}
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin celeriac
COPY --from=build /opt/venv /opt/venv
COPY --from=build /app /app
WORKDIR /app
USER 10001
STOPSIGNAL SIGTERM
EXPOSE 8000
# Reads a file or asks one address; imports no Django, which would cost a second of CPU each time.
HEALTHCHECK --interval=20s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-m", "config.probe", "alive"]
# Exec form: the program itself is process 1 and gets SIGTERM. A shell would keep it.
CMD ["gunicorn", "-c", "config/gunicorn.py", "project.wsgi:application"]
