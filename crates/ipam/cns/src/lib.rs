//! Azure CNS's REST API between a CNI plugin and the daemon that owns a node's addresses: bodies,
//! paths and return codes, for client and server.
//!
//! Wire types only: no client, no server, no decision. Field names are those of the Go structs
//! (`Azure/azure-container-networking`, package `cns`), including the misspelt one. Fields that
//! Weft adds are marked "Weft's own"; they are omitted when unset and ignored by upstream. An
//! optional field reads the same whether it is absent or `null`, as in Go.

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
pub use extension::{
    Attachment, FamilyCounts, GcRequest, GcResponse, PoolCounts, Serving, StatusResponse,
};
pub use info::{HostIpInfo, INFRA_NIC, IpConfiguration, IpSubnet, PodIpInfo, Route};
pub use request::{IpConfigRequest, IpConfigsRequest, PodContext};
pub use response::{
    IpConfigResponse, IpConfigsResponse, ReleaseIpConfigResponse, ReleaseIpConfigsResponse,
    Response,
};
