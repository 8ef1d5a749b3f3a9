"""How does a result look? One Bokeh figure a module; no Streamlit."""
