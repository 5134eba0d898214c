//! Doubles of cloud APIs: HTTP servers on loopback that answer as the real ones do, as far as route
//! controllers use them, and count, delay, limit and fail on demand.
//!
//! Every double has a control API under `/_double/`, so that a program that is not ours can be
//! measured and disturbed too:
//!
//! | request | effect |
//! |---|---|
//! | `GET /_double/counters` | calls by endpoint and result |
//! | `GET /_double/table` | the routes that are there |
//! | `POST /_double/faults` | adds one [`Fault`] or a list of them |
//! | `DELETE /_double/faults` | forgets those that are left |
//! | `PUT /_double/machines` | replaces the servers or instances |
//! | `POST /_double/reset` | no routes, no faults, all counters at zero |

mod bucket;
mod counters;
mod ec2;
mod fault;
mod hcloud;
mod server;

pub use ec2::{Ec2Double, Ec2Instance, Ec2Options, Ec2Route, Ec2Table, Ec2Target, Throttle};
pub use fault::{Fault, FaultKind};
pub use hcloud::{HcloudDouble, HcloudLatency, HcloudOptions, HcloudRoute, HcloudServer};
