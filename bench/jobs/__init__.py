"""One training job under different keepers, and the same faults for each: what benchmarks compare."""
