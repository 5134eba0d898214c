//! Keeps the kernel's iptables chains in step with the Services.
