"""What only maintainers use: our measured results, pages made of them, recipes of our weights."""
