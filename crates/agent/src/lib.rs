//! The long-running loops of a node.
