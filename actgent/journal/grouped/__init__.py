"""Journals that write the steps of many sessions together: the queue, the numbers, pages and readers."""
