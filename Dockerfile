# The command `advisor` in a container. Build the wheel with `make package`, then one of these images:
#   docker build --tag advisor .                                  logs, and models behind servers
#   docker build --tag advisor --build-arg EXTRA='[local]' .      also models in the container
# and call it on the files of a folder: docker run --rm --volume "$PWD:/data" advisor select --logs log.csv
FROM python:3.12-slim-trixie
ARG EXTRA=""
COPY dist/unite_advisor-*.whl /tmp/
RUN cd /tmp && pip install --no-cache-dir "$(ls unite_advisor-*.whl)$EXTRA" && rm unite_advisor-*.whl
# Not root: the first user's id of most systems, which can write a mounted folder of theirs.
RUN useradd --create-home --uid 1000 advisor
USER advisor
WORKDIR /data
ENTRYPOINT ["advisor"]
