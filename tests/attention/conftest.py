import pytest

from vit_rpe.attention.plan import forget_plans


@pytest.fixture(autouse=True)
def fresh_plans():
    """Some tests change forms and constants: no plan outlives its test."""
    forget_plans()
    yield
    forget_plans()
