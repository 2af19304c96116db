"""Fixtures that several tests share."""

from __future__ import annotations
