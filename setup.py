"""The part of the build that pyproject.toml has no words for: recipes/ is in the wheel, too."""

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithRecipes(build_py):
    """Copy recipes/ to vit_rpe/recipes/, where an installed package looks for it."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # then the package finds those of the checkout
            self.copy_tree("recipes", f"{self.build_lib}/vit_rpe/recipes")


setup(cmdclass={"build_py": BuildWithRecipes})
