"""A receiver of OTLP over HTTP that decodes the protobuf messages of spans and metrics."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import attrs
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@attrs.define
class OTLPReceiver:
    """The requests that the receiver got."""

    url: str
    traces: list = attrs.field(factory=list)
    metrics: list = attrs.field(factory=list)

    def spans(self):
        """Return all spans, each with its resource and its scope."""
        return [
            (each.resource, scope, span)
            for request in self.traces
            for each in request.resource_spans
            for scope in each.scope_spans
            for span in scope.spans
        ]

    def metric_names(self):
        return {
            metric.name
            for request in self.metrics
            for each in request.resource_metrics
            for scope in each.scope_metrics
            for metric in scope.metrics
        }


def values_of(attributes):
    """Return OTLP attributes as a dict without lists."""
    return {
        each.key: getattr(each.value, kind)
        for each in attributes
        if (kind := each.value.WhichOneof("value")) != "array_value"
    }


@contextmanager
def open_otlp_receiver():
    """Receive on a free port of the loopback interface."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            made = ExportTraceServiceRequest() if self.path == "/v1/traces" else ExportMetricsServiceRequest()
            made.ParseFromString(body)
            (receiver.traces if self.path == "/v1/traces" else receiver.metrics).append(made)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver = OTLPReceiver(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
