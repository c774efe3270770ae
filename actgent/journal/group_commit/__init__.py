"""Group commit: write the steps of many sessions in one transaction, for all storages."""
