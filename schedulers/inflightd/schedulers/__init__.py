"""Scheduler policies and the contract they are written against."""
