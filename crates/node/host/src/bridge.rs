//! Bridge devices and their addresses: find, create, correct.

use ipnet::IpNet;
use rustix::io::Errno;
use weft_model::IpFamily;

use crate::{
    addresses::interface_addresses,
    netlink::{
        FLAG_ACKNOWLEDGE, FLAG_CREATE, FLAG_EXCLUSIVE, FLAG_REQUEST, NetlinkError, Protocol,
        Request, Socket, attributes, family_number, fixed,
    },
};

const NEW_LINK: u16 = 16;
const GET_LINK: u16 = 18;
const SET_LINK: u16 = 19;
const NEW_ADDRESS: u16 = 20;
const DELETE_ADDRESS: u16 = 21;
/// Size of `ifinfomsg`: family, type, interface index, flags, change mask.
const LINK_PART: usize = 16;
const LINK_ADDRESS: u16 = 1;
const LINK_NAME: u16 = 3;
const LINK_MTU: u16 = 4;
const LINK_INFO: u16 = 18;
const INFO_KIND: u16 = 1;
const IFF_UP: u32 = 1;
const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;
const BROADCAST: u16 = 4;

/// Hardware address of an Ethernet device.
pub type Mac = [u8; 6];

/// A device as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Interface index.
    pub index: u32,
    /// True if it is a bridge.
    pub is_bridge: bool,
    /// Hardware address. That of a bridge without ports is zero, unless one was set: then it
    /// stays, whichever ports come and go.
    pub mac: Mac,
    /// Administratively up.
    pub up: bool,
}

/// The device of this name in the calling thread's network namespace.
pub fn find(name: &str) -> Result<Option<Device>, NetlinkError> {
    let mut socket = Socket::open(Protocol::Route)?;
    let request = Request::new(
        GET_LINK,
        FLAG_REQUEST | FLAG_ACKNOWLEDGE,
        &link_part(0, 0, 0),
    )
    .with(LINK_NAME, &text(name));
    let mut found = None;
    let answered = socket.request("look up a device", request, |payload| {
        found = found.take().or_else(|| parse(payload));
    });
    match answered {
        Err(error) if error.errno() == Some(Errno::NODEV) => Ok(None),
        other => other.map(|()| found),
    }
}

/// Creates a bridge with a hardware address of its own, and sets it up. Fails with `EEXIST` if
/// there is a device of this name.
pub fn create(name: &str, mac: Mac, mtu: Option<u16>) -> Result<(), NetlinkError> {
    let flags = FLAG_REQUEST | FLAG_ACKNOWLEDGE | FLAG_CREATE | FLAG_EXCLUSIVE;
    let mut request = Request::new(NEW_LINK, flags, &link_part(0, IFF_UP, IFF_UP))
        .with(LINK_NAME, &text(name))
        .with(LINK_ADDRESS, &mac);
    if let Some(mtu) = mtu {
        request = request.with(LINK_MTU, &u32::from(mtu).to_ne_bytes());
    }
    let request = request.with_nested(LINK_INFO, |info| info.with(INFO_KIND, b"bridge"));
    send("create a bridge", request)
}

/// Sets the hardware address. A bridge that gets its own one keeps it from then on.
pub fn set_mac(index: u32, mac: Mac) -> Result<(), NetlinkError> {
    let flags = FLAG_REQUEST | FLAG_ACKNOWLEDGE;
    let request = Request::new(SET_LINK, flags, &link_part(index, 0, 0)).with(LINK_ADDRESS, &mac);
    send("set a hardware address", request)
}

/// Sets a device administratively up.
pub fn set_up(index: u32) -> Result<(), NetlinkError> {
    let flags = FLAG_REQUEST | FLAG_ACKNOWLEDGE;
    let request = Request::new(SET_LINK, flags, &link_part(index, IFF_UP, IFF_UP));
    send("set a device up", request)
}

/// The addresses of a device with their prefix lengths, without link-local ones of IPv6.
pub fn addresses(index: u32) -> Result<Vec<IpNet>, NetlinkError> {
    let mut all = interface_addresses(IpFamily::V4)?;
    all.extend(interface_addresses(IpFamily::V6)?);
    let own = all.into_iter().filter(|entry| entry.interface == index);
    let nets = own.filter_map(|entry| IpNet::new(entry.address, entry.prefix_length).ok());
    Ok(nets
        .filter(|net| !matches!(net, IpNet::V6(net) if net.addr().is_unicast_link_local()))
        .collect())
}

/// Adds an address to a device; one that it has is fine.
pub fn add_address(index: u32, net: IpNet) -> Result<(), NetlinkError> {
    let flags = FLAG_REQUEST | FLAG_ACKNOWLEDGE | FLAG_CREATE | FLAG_EXCLUSIVE;
    let mut request = address_request(NEW_ADDRESS, flags, index, net);
    if let IpNet::V4(net) = net {
        request = request.with(BROADCAST, &net.broadcast().octets());
    }
    match send("add an address", request) {
        Err(error) if error.errno() == Some(Errno::EXIST) => Ok(()),
        other => other,
    }
}

/// Removes an address from a device, with the route of its network; one that it has not is fine.
pub fn remove_address(index: u32, net: IpNet) -> Result<(), NetlinkError> {
    let flags = FLAG_REQUEST | FLAG_ACKNOWLEDGE;
    match send(
        "remove an address",
        address_request(DELETE_ADDRESS, flags, index, net),
    ) {
        Err(error) if error.errno() == Some(Errno::ADDRNOTAVAIL) => Ok(()),
        other => other,
    }
}

fn address_request(kind: u16, flags: u16, index: u32, net: IpNet) -> Request {
    let mut header = [0; 8];
    header[0] = family_number(IpFamily::of(net.addr()));
    header[1] = net.prefix_len();
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    let octets = match net {
        IpNet::V4(net) => net.addr().octets().to_vec(),
        IpNet::V6(net) => net.addr().octets().to_vec(),
    };
    Request::new(kind, flags, &header)
        .with(LOCAL, &octets)
        .with(ADDRESS, &octets)
}

fn send(operation: &'static str, request: Request) -> Result<(), NetlinkError> {
    Socket::open(Protocol::Route)?.request(operation, request, |_| ())
}

fn link_part(index: u32, flags: u32, change: u32) -> [u8; LINK_PART] {
    let mut header = [0; LINK_PART];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&change.to_ne_bytes());
    header
}

/// A name as the kernel expects it: with a zero at its end.
fn text(name: &str) -> Vec<u8> {
    name.bytes().chain([0]).collect()
}

fn parse(payload: &[u8]) -> Option<Device> {
    let list = || attributes(payload.get(LINK_PART..).unwrap_or(&[]));
    let info = list().find(|attribute| attribute.kind == LINK_INFO);
    let kind =
        info.and_then(|info| attributes(info.value).find(|attribute| attribute.kind == INFO_KIND));
    let mac = list().find(|attribute| attribute.kind == LINK_ADDRESS);
    Some(Device {
        index: u32::from_ne_bytes(fixed(payload, 4)?),
        is_bridge: kind
            .is_some_and(|kind| kind.value.starts_with(b"bridge\0") || kind.value == b"bridge"),
        mac: mac.and_then(|mac| fixed(mac.value, 0)).unwrap_or_default(),
        up: u32::from_ne_bytes(fixed(payload, 8)?) & IFF_UP != 0,
    })
}
