"""The library versions this package is tested with, and the check that says so in words."""

from importlib.metadata import PackageNotFoundError, version

from packaging.specifiers import SpecifierSet

# The same ranges as in pyproject.toml (a test compares them). They are narrow because the int8 tensor's attributes, the
# oneDNN fusion patterns and the loading hooks of transformers have all moved between recent releases.
SUPPORTED = {"torch": ">=2.13,<2.14", "torchao": ">=0.18,<0.19", "transformers": ">=5.24,<5.25"}


def check_versions() -> None:
    """Checks the installed libraries against `SUPPORTED`.

    Raises:
        `ImportError`: a library is missing or outside its range. The message names every such library, its version, the
            range, and the `pip` command that repairs it.
    """
    problems = []
    for package, supported in SUPPORTED.items():
        try:
            installed = version(package)
        except PackageNotFoundError:
            problems.append((package, "not installed", supported))
            continue
        if not SpecifierSet(supported).contains(installed, prereleases=True):
            problems.append((package, installed, supported))
    if problems:
        found = "; ".join(
            f"{package} {installed} (supported: {supported})" for package, installed, supported in problems
        )
        wanted = " ".join(f"'{package}{supported}'" for package, _, supported in problems)
        raise ImportError(
            f"hf_smoothquant can't work with the installed versions: {found}. Install what it is tested with: "
            f"pip install {wanted}"
        )
