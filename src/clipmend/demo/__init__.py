"""The demonstration: find where negation is lost, mend it, search with it, and a report to look at."""

from clipmend.demo.run import DemoOptions, run_demo

__all__ = ["DemoOptions", "run_demo"]
