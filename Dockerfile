# The command line with reports, dashboard, agent server and cloud storage:
#
#   docker build -t usp-prof .
#   docker run --rm -v "$PWD/traces:/traces:ro" usp-prof analyze /traces/my-run
#   docker run --rm -v "$PWD/traces:/traces:ro" -p 8501:8501 usp-prof dashboard /traces --host 0.0.0.0
FROM python:3.12-slim AS build
RUN pip install --no-cache-dir build
COPY . /src
RUN python -m build --wheel --outdir /dist /src

FROM python:3.12-slim
COPY --from=build /dist /dist
RUN wheel=$(echo /dist/*.whl) \
    && pip install --no-cache-dir "$wheel[report,dashboard,agent,cloud]" \
    && rm -r /dist \
    && useradd --create-home usp
USER usp
ENV USP_PROF_CACHE=/home/usp/cache
ENTRYPOINT ["usp-prof"]
CMD ["--help"]
