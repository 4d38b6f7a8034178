"""`slipstream chat`: a conversation with a gateway, on a terminal."""
