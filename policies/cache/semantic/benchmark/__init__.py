"""How a semantic cache does on labelled traffic: hits and wrong answers of the verified decision and of others."""
