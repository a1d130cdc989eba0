"""`python -m quadriga`: the command `quadriga`."""

from quadriga.engine.cli import main

if __name__ == "__main__":
    main()
