//! Raw first packets through a node, and where each of them arrives.
//!
//! A [`Site`] is a node with pods behind it and an outside. Requests are sent in any number at once,
//! without sockets that wait for them; observers in the pods and outside recognise each one by a
//! number that it carries, and its answer too. So the way of thousands of packets through a proxy's
//! rules is known in about a second, and two proxies can be compared by it.

mod observer;
mod site;
mod wire;

pub use observer::Fate;
pub use site::{Location, Probe, Site};
pub use wire::{Answer, Transport};
