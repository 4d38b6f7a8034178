"""What English sentences say of two things, and in which direction: read by patterns, not learned."""
