"""How figures are put into words."""


def counted(number: int, noun: str) -> str:
    """A count with its noun: `1 fault`, `2,000 faults`. The plural of the noun takes an s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
