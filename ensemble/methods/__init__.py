"""Ways of combining what the members want, one small file each."""
