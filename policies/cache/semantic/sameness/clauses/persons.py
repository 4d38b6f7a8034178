"""English pronouns by the part that they play: who does it, and whom it is done to."""

from __future__ import annotations

SUBJECT_OF = {"me": "i", "us": "we", "them": "they", "him": "he", "her": "she", "whom": "who"}
OBJECT_OF = {subject: object_ for object_, subject in SUBJECT_OF.items()}
