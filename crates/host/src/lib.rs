//! The only door to the kernel: iptables programs, netlink, sysctls, addresses.
