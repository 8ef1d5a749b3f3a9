"""The dashboard: a Streamlit app that shows runs in a browser. Installed as `usp_prof_dashboard`."""
