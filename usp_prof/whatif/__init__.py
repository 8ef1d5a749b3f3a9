"""What-if: edits of the replayed run, predicted tables, gains."""
