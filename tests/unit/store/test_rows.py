from quadriga.store.database.rows import InferenceRow
from quadriga.store.database.schema import COLUMNS


def test_a_row_to_insert_has_the_columns_of_its_table_in_order() -> None:
    assert InferenceRow._fields == COLUMNS["inference"]
