"""Policy files that ship with the gateway."""
