"""What of `e2e.cluster` needs neither root nor Go: names, arguments, files, certificates, archives, supervision."""
