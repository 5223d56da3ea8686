# One image for every part of a federation: SuperLink, SuperNodes, their SuperExecs, the fedproto
# command. It holds the package and what it needs at run time, in the versions of constraints.txt.
#
#   docker build --tag fedproto-app .
#
# BASE_IMAGE: any with Python 3.11 and pip. PIP_ARGS reaches pip: on a base without torch, point it
# at an index with torch's CPU build to save gigabytes.
ARG BASE_IMAGE=python:3.11-slim
FROM ${BASE_IMAGE}
ARG PIP_ARGS=""

# Written by hand, as not every base has useradd. Mounted files must be readable to this number.
RUN echo 'fedproto:x:10001:10001::/flwr:/usr/sbin/nologin' >>/etc/passwd \
 && echo 'fedproto:x:10001:' >>/etc/group \
 && install -d -o 10001 -g 10001 -m 700 /flwr /runs /state /var/lib/superlink \
 && install -d -m 700 /audit \
 && install -d -g 10003 -m 2750 /var/lib/superexec

WORKDIR /app
# Before the code, so that a new version of it leaves these layers alone. Every file is held against
# its hash (`make hashes` writes the list), but torch: which build a machine needs, and from which
# index, is PIP_ARGS' to say. Ray, of Flower's simulation, is nothing that a node needs; what counts
# privacy, a node may.
COPY docker/requirements.txt constraints.txt ./
RUN pip install --no-cache-dir ${PIP_ARGS} --require-hashes --no-deps --requirement requirements.txt
RUN pip install --no-cache-dir ${PIP_ARGS} --constraint constraints.txt torch

COPY pyproject.toml LICENSE README.md ./
# Editable: runs are submitted from this folder, and there is one copy of the code.
COPY configs configs
COPY fedproto_app fedproto_app
COPY fedproto_compared fedproto_compared
RUN pip install --no-cache-dir ${PIP_ARGS} --no-deps --editable . \
 && pip check \
 && python3 -m compileall -q fedproto_app fedproto_compared
COPY docker/bin/ /usr/local/bin/
# What stands before Flower's own programs where PATH begins with it: docs/sites.md.
COPY docker/gate/ /usr/local/lib/fedproto/gate/

ENV FLWR_HOME=/flwr \
    FLWR_TELEMETRY_ENABLED=0 \
    FLWR_DISABLE_UPDATE_CHECK=1 \
    FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 \
    HOME=/tmp \
    MPLCONFIGDIR=/tmp/matplotlib \
    PYTHONUNBUFFERED=1
USER 10001:10001
CMD ["fedproto", "--help"]
