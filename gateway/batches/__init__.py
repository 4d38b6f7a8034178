"""/v1/files and /v1/batches: kept in the ledger, answered line by line or through a provider's own Batch API."""
