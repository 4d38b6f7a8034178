"""/v1/files and /v1/batches: kept on disk, answered line by line or through a provider's own Batch API."""
