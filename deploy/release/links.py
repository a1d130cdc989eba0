"""Links and pictures of a page of HTML that stands by itself, without the repository that it is written for."""

from html.parser import HTMLParser

from deploy.release.checks import CheckError


class _Links(HTMLParser):
    """Collects what a page leads to, and the places in it that can be led to."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the target or the name of an element."""
        values = dict(attrs)
        target = values.get("href" if tag == "a" else "src")
        if target is not None:
            self.targets.append(target)
        self.anchors |= {value for name in ("id", "name") if (value := values.get(name))}


def check_links(page: str) -> int:
    """Check the links of a page of HTML; return their number."""
    links = _Links()
    links.feed(page)
    dead = [
        target
        for target in links.targets
        if not target.startswith(("https://", "http://", "mailto:"))
        and not (target.startswith("#") and target[1:] in links.anchors)
    ]
    if dead:
        raise CheckError(f"an index page cannot resolve: {', '.join(dead)}")
    return len(links.targets)
