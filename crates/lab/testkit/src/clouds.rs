//! Doubles of cloud APIs: HTTP servers on loopback that implement what route controllers use, count
//! calls, and delay, limit and fail them on demand.
//!
//! Every double has a control API under `/_double/`, so that tests can also measure and disturb
//! programs of other projects:
//!
//! | request | effect |
//! |---|---|
//! | `GET /_double/counters` | calls by endpoint and result |
//! | `GET /_double/table` | current routes |
//! | `POST /_double/faults` | adds one [`Fault`] or a list of them |
//! | `DELETE /_double/faults` | removes all faults |
//! | `PUT /_double/machines` | replaces the servers or instances |
//! | `POST /_double/reset` | restores the initial routes, removes faults, sets counters to zero |

mod bucket;
mod counters;
mod ec2;
mod fault;
mod hcloud;
mod server;

pub use ec2::{Ec2Double, Ec2Instance, Ec2Options, Ec2Route, Ec2Table, Ec2Target, Throttle};
pub use fault::{Fault, FaultKind};
pub use hcloud::{HcloudDouble, HcloudLatency, HcloudOptions, HcloudRoute, HcloudServer};
