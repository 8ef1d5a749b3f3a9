"""Where did the step go, seen from a browser? A Streamlit app over usp_prof's public API and its charts."""
