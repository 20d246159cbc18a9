"""Settings of processes under watch: what Sentry and OpenTelemetry would send goes to files.

In processes of their own, because both patch Celery for good.
"""

import json
import os
from collections.abc import Sequence
from typing import Any

import sentry_sdk
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from sentry_sdk.integrations.celery import CeleryIntegration
from sentry_sdk.transport import Transport

from tests.settings import *  # noqa: F403


def write_line(variable: str, line: dict[str, Any]) -> None:
    with open(os.environ[variable], "a") as lines:
        lines.write(json.dumps(line) + "\n")


class FileTransport(Transport):
    def capture_envelope(self, envelope: Any) -> None:
        for item in envelope.items:
            if item.payload.json is not None:
                write_line("SENTRY_FILE", {"type": item.type, **item.payload.json})


class FileExporter(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        for span in spans:
            write_line("SPANS_FILE", json.loads(span.to_json()))
        return SpanExportResult.SUCCESS


if "SENTRY_FILE" in os.environ:
    sentry_sdk.init(
        dsn="https://key@sentry.invalid/1",
        transport=FileTransport,
        integrations=[CeleryIntegration()],
        traces_sample_rate=1.0,
    )

if "SPANS_FILE" in os.environ:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(FileExporter()))
    CeleryInstrumentor().instrument(tracer_provider=provider)
