"""Facets as links: of what a value is counted, its link finds."""

import pytest

from quadriga.engine.console.filter_line import FilterLinks, InferenceFilter
from quadriga.engine.console.pages.inferences import CountedFacet, facet_groups
from quadriga.store.browsing.facets import Facet, FacetValue


def counted(field: str, *values: str) -> CountedFacet:
    listed = [FacetValue(value, 5) for value in values]
    facet = Facet(field, "string", 5, distinct=len(values), values=listed, histogram=[])
    return CountedFacet(facet, is_exact=True)


@pytest.mark.parametrize(
    ("tasks", "line", "link", "is_chosen"),
    [
        (["OBJECT_DETECTION"], "", "label=ring", False),
        (["IMAGE_CLASSIFICATION"], "", "best=ring", False),
        (["OBJECT_DETECTION", "IMAGE_CLASSIFICATION"], "meta.a=1", "meta.a=1 & best=ring", False),
        (["IMAGE_CLASSIFICATION"], "best=ring", "", True),
        (["IMAGE_CLASSIFICATION"], "best=disc", "best=in:disc,ring", False),
        (["IMAGE_CLASSIFICATION"], "best=in:disc,ring", "best=disc", True),
        (["IMAGE_CLASSIFICATION"], "meta.a=1 & label=ring", "meta.a=1", True),
        ([], "", "label=ring", False),
    ],
)
def test_a_label_leads_to_what_was_counted_for_it(tasks, line, link, is_chosen):
    links = FilterLinks(InferenceFilter(line), lambda path, q: q, "/")
    groups, _ = facet_groups([counted("task", *tasks), counted("label", "ring", "disc")], links)
    ring = next(group for group in groups if group.facet.field == "label").values[0]
    assert (ring.name, ring.link, ring.is_chosen) == ("ring", link, is_chosen)
