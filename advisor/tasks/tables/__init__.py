"""Files with records that other programs wrote, read piece by piece and with limits: for tasks and for logs."""
