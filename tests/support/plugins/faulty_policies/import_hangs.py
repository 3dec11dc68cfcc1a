"""Is never imported to the end."""

import time

time.sleep(3600)
