# syntax=docker/dockerfile:1
# The two images that deploy/ names:
#   docker build --target weft-node       -t REGISTRY/weft-node:VERSION .
#   docker build --target weft-controller -t REGISTRY/weft-controller:VERSION .
# The commit is not in the build context, so `weft version` in an image says "unknown" for it.

FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
# weft-cni is copied out of the image and run by the node's container runtime, whose C library may be
# older than this one: it brings its own. Naming a target keeps the flag away from procedural macros.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    set -eu; \
    host="$(rustc -vV | sed -n 's/^host: //p')"; \
    cargo build --locked --profile dist --package weft --bin weft; \
    RUSTFLAGS="-C target-feature=+crt-static" \
        cargo build --locked --profile dist --target "$host" --package weft-cni --bin weft-cni; \
    install -D -t /out target/dist/weft "target/$host/dist/weft-cni"

# Everything of a node. Debian's iptables package has both variants; kmod loads modules for the
# service proxy; the CNI project's plugins are copied to nodes that have none. Connection tracking is
# spoken to by netlink, so its program is not needed.
FROM debian:bookworm-slim AS weft-node
RUN set -eu; \
    apt-get update; \
    apt-get install --yes --no-install-recommends iptables kmod containernetworking-plugins; \
    rm -rf /var/lib/apt/lists/*; \
    iptables-nft --version; \
    iptables-legacy --version; \
    test -x /usr/lib/cni/bridge
COPY --from=build /out/weft /out/weft-cni /usr/local/bin/
CMD ["weft", "--help"]

# The controllers: no shell, no package manager, not root. Trusted certificates are there, for the
# APIs of clouds.
FROM gcr.io/distroless/cc-debian12:nonroot AS weft-controller
COPY --from=build /out/weft /usr/local/bin/weft
CMD ["weft", "--help"]
