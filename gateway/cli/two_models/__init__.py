"""The commands about a small and a large model: eval-router, calibrate."""
