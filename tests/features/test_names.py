"""Names of feature maps, for models and GKATConv alike."""

import pytest
import torch

from vit_rpe.features import AdditiveFeatures, PositiveRandomFeatures, make_features
from vit_rpe.features.names import ADDITIVE, ELEMENTWISE, RANDOM, is_random


@pytest.mark.parametrize("name", [*ELEMENTWISE, *RANDOM, "softmax"])
def test_every_name_makes_its_map(name):
    features = make_features(name, 4, num_features=6 if is_random(name) else None, unit_norm=True)
    phi, _ = features(*torch.randn(2, 5, 4))
    assert features.unit_norm and phi.shape == (5, 6 if is_random(name) else 4)


def test_softmax_is_another_name_of_favor():
    assert type(make_features("softmax", 4)) is type(make_features("favor", 4))
    assert type(make_features("favor", 4)) is PositiveRandomFeatures


def test_additive_features_are_for_callers_that_ask_for_them():
    (name,) = ADDITIVE
    assert isinstance(make_features(name, 4, additive=True), AdditiveFeatures)
    with pytest.raises(ValueError, match="feature_map must be one of relu, .*; got 'additive'"):
        make_features(name, 4)


def test_what_has_no_meaning_is_refused():
    with pytest.raises(ValueError, match="num_features=3 has no meaning for feature_map='relu'"):
        make_features("relu", 4, num_features=3)
    with pytest.raises(ValueError, match="feature_map must be one of relu, .*; got 'rbf'"):
        make_features("rbf", 4)
