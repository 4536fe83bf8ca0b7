"""The engine: it knows no objective and no data set, by name or by feature."""

import time

STARTED = time.time()  # of this process, as near as we come: what is imported next takes seconds
