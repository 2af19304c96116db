"""What is wired together: settings → data, objective → loop.fit."""
