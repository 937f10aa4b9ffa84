import pytest

from tests.data.samples import write_folder


@pytest.fixture
def images(tmp_path):
    return write_folder(tmp_path / "images")
