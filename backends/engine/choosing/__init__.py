"""From logits to tokens: what a request asks of sampling, its edits of the logits, its grammar."""
