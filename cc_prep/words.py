"""How figures are put into words."""


def counted(number: int, noun: str) -> str:
    """A count with its noun: `1 fault`, `2,000 faults`. The plural of the noun takes an s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def duration(seconds: float) -> str:
    """A duration in the largest unit that gives two or more."""
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            count = seconds / length
            return f"{count:,.0f} {unit}" if count >= 10 else f"{count:.2g} {unit}"
    return f"{seconds:.0f} s"
