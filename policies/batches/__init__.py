"""What a policy says of /v1/batches; `gateway/batches` carries it out."""
