"""Keys and values: the pages, who uses them, what can be found again, and the memory behind them."""
