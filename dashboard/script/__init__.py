"""The script that Streamlit runs for each session."""
