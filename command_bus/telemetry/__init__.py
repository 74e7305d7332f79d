"""What a worker shows of itself: probes and metrics over HTTP (extra `prometheus` for the latter), traces (extra `otel`)."""
