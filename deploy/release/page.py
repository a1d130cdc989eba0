"""The metadata, and the README as the page of an index, which resolves no links of the repository."""

from email import message_from_bytes
from zipfile import ZipFile

from readme_renderer import markdown

from deploy.release.checks import CLIENT, CheckError, Release, run, tool
from deploy.release.links import check_links

_MIN_CHARACTERS = 1000


def check_metadata(release: Release) -> str:
    """Run twine check --strict and validate-pyproject."""
    run(tool("validate-pyproject"), release.root / "pyproject.toml")
    archives = (release.wheel, release.sdist, release.client_wheel, release.client_sdist)
    run(tool("twine"), "check", "--strict", *archives)
    run(tool("validate-pyproject"), release.root / CLIENT / "pyproject.toml")
    return "validate-pyproject and twine check --strict find nothing"


def check_page(release: Release) -> str:
    """Render the description in the wheel's metadata, and see that every link and picture is one of the web or of the page."""
    with ZipFile(release.wheel) as archive:
        metadata = archive.read(f"quadriga-{release.version}.dist-info/METADATA")
    message = message_from_bytes(metadata)
    if message["Description-Content-Type"].partition(";")[0] != "text/markdown":
        raise CheckError("expected the description to be Markdown")
    page = markdown.render(message.get_payload(decode=True).decode())
    if page is None or len(page) < _MIN_CHARACTERS:
        raise CheckError("the README does not render")
    return f"{len(page):,} characters; {check_links(page)} links, all of the web or of the page"
