"""The engine's figures, measured side by side with its peers on the same weights: `slipstream bench engine`."""
