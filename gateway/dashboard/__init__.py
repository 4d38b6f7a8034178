"""The dashboard: what was spent and saved, how the caches and the service do, as pages served by the gateway itself."""
