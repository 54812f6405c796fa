"""Times as they stand in logs, in UTC: they sort, and nobody asks which of the two is the month."""

DATE_FORMAT = "Y-m-d"
TIME_FORMAT = "H:i:s"
DATETIME_FORMAT = "Y-m-d H:i:s"
