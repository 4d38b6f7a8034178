"""The cascade: a cheap answer where that is calibrated to be good enough, else the target's."""
