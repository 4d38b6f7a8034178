"""What made-up answers say: kinds of facts, a file for each field of life."""
