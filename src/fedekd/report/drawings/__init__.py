"""The report's charts drawn with matplotlib, for manuscripts; from the same rows and in the same colours."""
