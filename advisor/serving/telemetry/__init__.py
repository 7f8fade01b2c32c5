"""What a server tells those who watch it: figures for Prometheus, and traces for OpenTelemetry."""
