"""How backends help each other to answer: draft tokens pushed onto a running answer, and scores of texts."""
