"""Group commit: write the batches of many sessions in one transaction, for all storages."""
