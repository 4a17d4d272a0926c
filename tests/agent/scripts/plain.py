"""A script that never joins: prints, waits a given time, ends with a given status."""

import sys
import time

print("plain output")
time.sleep(float(sys.argv[1]))
print("last words")
sys.exit(int(sys.argv[2]))
