"""Reading a policy file: files, YAML, names, and messages that say what to do."""
