"""Durable handlers: steps, calls, sleeps, signals and compensation, and the suspension of a command that waits."""
