"""Writers: each sets a document in one form, and none computes."""
