"""Writers: each formats a document; none computes."""
