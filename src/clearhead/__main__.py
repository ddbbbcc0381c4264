"""`python -m clearhead`, the same as the command: what torchrun and those without it on their path can call."""

from clearhead.cli import main

if __name__ == "__main__":
    main()
