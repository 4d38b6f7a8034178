"""Work that goes upstream together: windows that gather while a backend is busy, and what may share a call."""
