//! Derives what a node has to do for each Service.
