"""`python -m waste`: the command line."""

from waste.cli import main

if __name__ == "__main__":
    main()
