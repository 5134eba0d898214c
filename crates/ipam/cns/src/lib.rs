//! Azure CNS's REST API between a CNI plugin and the daemon that holds a node's addresses: bodies,
//! paths and codes, for either end.
//!
//! Only words live here: no client, no server, no decision. Field names are those of the Go
//! structs (`Azure/azure-container-networking`, package `cns`), including the misspelt one; what
//! Weft adds is said to be so at its place, is left out when it is not set, and is ignored by the
//! original. Absent and `null` read the same everywhere, as in Go.

mod blank;
mod code;
mod debug;
mod extension;
pub mod header;
mod info;
pub mod path;
mod request;
mod response;

pub use code::ReturnCode;
pub use debug::{
    AddressFilter, AddressState, AddressStatus, AddressesResponse, PodContextResponse, PodRecord,
    RestData, RestDataResponse,
};
pub use extension::{Attachment, GcRequest, GcResponse, PoolCounts, Serving, StatusResponse};
pub use info::{HostIpInfo, INFRA_NIC, IpConfiguration, IpSubnet, PodIpInfo, Route};
pub use request::{IpConfigRequest, IpConfigsRequest, PodContext};
pub use response::{
    IpConfigResponse, IpConfigsResponse, ReleaseIpConfigResponse, ReleaseIpConfigsResponse,
    Response,
};
