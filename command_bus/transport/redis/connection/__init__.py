"""Connections to one server, Sentinel or Cluster: clients, pipelines, failover and errors."""
