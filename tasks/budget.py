"""A budget of one request: units of work, counted before the work is done."""


class BudgetError(ValueError):
    """A request would cost more than its budget; the message says of what."""


class Budget:
    """Units that one request may spend; None is any number.

    Args:
        limit: Maximum units.
        unit: Name of the units in the message, such as `tiles`.
    """

    def __init__(self, limit: int | None, unit: str) -> None:
        self._limit = limit
        self._unit = unit
        self._spent = 0

    def spend(self, units: int) -> None:
        """Count units of work that is about to be done.

        Raises:
            BudgetError: They exceed what remains.
        """
        if self._limit is not None and self._spent + units > self._limit:
            raise BudgetError(
                f"expected at most {self._limit} {self._unit} in a request, got {self._spent + units} or more"
            )
        self._spent += units
