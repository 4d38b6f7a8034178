"""What answers: the backend protocol, HTTP upstreams, the scripted fake."""
