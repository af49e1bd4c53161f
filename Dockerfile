# The broker in a small image: its own user, a root file system that can be read-only, no configuration and no secret.
# `scripts/image_steps.py` runs the same steps without a container engine; `make check` lints this file.
# Build arguments can replace both base images, for example with images pinned to a digest.
ARG RUST_IMAGE=docker.io/library/rust:1.95.0-slim-bookworm
ARG BASE_IMAGE=docker.io/library/debian:bookworm-slim

FROM ${RUST_IMAGE} AS build
WORKDIR /src
COPY . .
# gcc is in the image; nothing else is needed. The program is that of `make dist`: release without debug information, optimised
# with the recorded profile of calls.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    scripts/build-program.sh /out/mcp-broker

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="mcp-broker" \
      org.opencontainers.image.description="One endpoint in front of many MCP servers" \
      org.opencontainers.image.licenses="Apache-2.0"
# The base image's Debian release sets the versions; it keeps no older ones to pin to.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates tini \
    && rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/* \
    && groupadd --gid 10001 broker \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/mcp-broker --shell /usr/sbin/nologin broker \
    && install -d -o 10001 -g 10001 -m 0711 /var/lib/mcp-broker
COPY --chmod=0755 deploy/image/health.sh /usr/local/bin/mcp-broker-health
COPY --chmod=0755 --from=build /out/mcp-broker /usr/local/bin/mcp-broker
# The home of the broker. Child processes have homes below it and must be able to pass through it. The SQLite database of the
# defaults is here too, in a folder that only the broker can enter.
ENV HOME=/var/lib/mcp-broker
WORKDIR /var/lib/mcp-broker
USER 10001:10001
EXPOSE 8080 9090 7400
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 CMD ["/usr/local/bin/mcp-broker-health"]
# tini is process 1: it reaps processes that stdio servers leave behind, and forwards signals to the broker alone.
ENTRYPOINT ["/usr/bin/tini", "--", "/usr/local/bin/mcp-broker"]
CMD ["serve"]
