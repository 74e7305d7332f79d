"""Observation of senders and workers: probes and metrics over HTTP (metrics: extra `prometheus`), and traces (extra `otel`)."""
