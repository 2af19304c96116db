"""Networks that only training knows."""
