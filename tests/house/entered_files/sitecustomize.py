"""Notes which of our files each process of a server enters.

A process reads this file at its start if its folder stands in `PYTHONPATH`. While `ENTERED_FILES/on` exists, the names of
the files whose functions run are kept; once it is gone they are written to `ENTERED_FILES/PID.txt`.
"""

import os
import sys
import threading
import time
from pathlib import Path

_FOLDER = Path(os.environ["ENTERED_FILES"])
_ROOT = os.path.realpath(os.environ["ENTERED_ROOT"]) + os.sep
_entered: set[str] = set()


def _note(frame, _event, _argument) -> None:
    _entered.add(frame.f_code.co_filename)


def _write() -> None:
    """Clear what was entered when counting begins, and write it when counting ends."""
    sys.settrace(None)
    was_on = False
    while True:
        time.sleep(0.02)
        is_on = (_FOLDER / "on").exists()
        if is_on and not was_on:
            _entered.clear()
        if was_on and not is_on:
            real = {os.path.realpath(name) for name in _entered.copy()}
            names = sorted(name.removeprefix(_ROOT) for name in real if name.startswith(_ROOT))
            partial = _FOLDER / f"{os.getpid()}.partial"
            partial.write_text("\n".join(names))
            partial.rename(_FOLDER / f"{os.getpid()}.txt")
        was_on = is_on


threading.Thread(target=_write, daemon=True).start()
sys.settrace(_note)  # which asks for no lines of a function, as it returns None
threading.settrace(_note)
