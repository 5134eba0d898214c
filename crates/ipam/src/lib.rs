//! Addresses for pods: which pod gets which, how many a node asks for, and which node gets which
//! block.
//!
//! Nothing here acts: no socket, no file, no clock. Events and observed objects come in as values
//! together with the time; records to be kept, answers and planned writes come out.

pub mod scaling;
