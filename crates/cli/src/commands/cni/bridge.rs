//! The bridge of a node's pods: its hardware address and the gateways of the node's range.
//!
//! The CNI project's `bridge` makes one too, without a hardware address of its own: after an ADD that
//! failed the bridge has no port and no address, and every later ADD fails. A gateway of a former
//! range makes each ADD fail as well, and its route keeps packets from the node that has the range now.

use anyhow::{Context as _, bail};
use ipnet::IpNet;
use weft_cns::IpSubnet;
use weft_host::{
    NetlinkError,
    bridge::{self, Device, Mac},
    hostname,
};

const NO_MAC: Mac = [0; 6];

/// The bridge as it should be.
#[derive(Debug)]
pub(super) struct Bridge {
    name: String,
    mtu: Option<u16>,
    /// The hardware address that was set, which the bridge keeps from then on.
    set: Option<Mac>,
}

impl Bridge {
    pub(super) fn new(name: &str, mtu: Option<u16>) -> Self {
        Self {
            name: name.to_owned(),
            mtu,
            set: None,
        }
    }

    /// Creates the bridge if there is none, and corrects its hardware address and its gateways.
    /// Returns what was changed of a bridge that existed, for the log.
    pub(super) fn ensure(&mut self, gateways: &[IpSubnet]) -> anyhow::Result<Vec<String>> {
        let name = &self.name;
        let mut changes = Vec::new();
        let device = if let Some(device) = self.find()? {
            device
        } else {
            let mac = stable_mac(name);
            bridge::create(name, mac, self.mtu).with_context(|| cannot("create", name))?;
            changes.push(format!("bridge {name} created"));
            self.set = Some(mac);
            let created = self.find()?;
            created.with_context(|| format!("bridge {name} was removed at once"))?
        };
        if !device.is_bridge {
            bail!("{name} is not a bridge: choose another name by --bridge, or remove it");
        }
        let correct =
            |error: NetlinkError| anyhow::Error::new(error).context(cannot("correct", name));
        if !device.up {
            bridge::set_up(device.index).map_err(correct)?;
            changes.push(format!("bridge {name} set up"));
        }
        if self.set != Some(device.mac) {
            let mac = if device.mac == NO_MAC {
                changes.push(format!("bridge {name} had no hardware address"));
                stable_mac(name)
            } else {
                device.mac
            };
            bridge::set_mac(device.index, mac).map_err(correct)?;
            self.set = Some(mac);
        }
        changes.extend(ensure_gateways(&device, gateways).map_err(correct)?);
        Ok(changes)
    }

    fn find(&self) -> anyhow::Result<Option<Device>> {
        bridge::find(&self.name).with_context(|| cannot("find", &self.name))
    }
}

fn cannot(verb: &str, name: &str) -> String {
    format!("cannot {verb} bridge {name}")
}

/// Leaves the bridge exactly the gateways of the node's range. While none is known, or several
/// subnets of a family are, which a bridge cannot serve, nothing is changed.
fn ensure_gateways(device: &Device, gateways: &[IpSubnet]) -> Result<Vec<String>, NetlinkError> {
    let wanted: Vec<IpNet> = (gateways.iter())
        .filter_map(|gateway| IpNet::new(gateway.ip_address?, gateway.prefix_length).ok())
        .collect();
    let of_family = |wanted_four: bool| {
        let four = |net: &&IpNet| matches!(net, IpNet::V4(_)) == wanted_four;
        wanted.iter().filter(four).count()
    };
    if wanted.is_empty() || of_family(true) > 1 || of_family(false) > 1 {
        return Ok(Vec::new());
    }
    let found = bridge::addresses(device.index)?;
    let mut changes = Vec::new();
    for net in found.iter().filter(|net| !wanted.contains(net)) {
        bridge::remove_address(device.index, *net)?;
        changes.push(format!("bridge address removed: {net}"));
    }
    for net in wanted.iter().filter(|net| !found.contains(net)) {
        bridge::add_address(device.index, *net)?;
        changes.push(format!("bridge address added: {net}"));
    }
    Ok(changes)
}

/// A hardware address that is the same after every reboot, and hardly another node's: by the names
/// of node and bridge. Its first byte says that it is of local meaning and of one station.
fn stable_mac(bridge: &str) -> Mac {
    // A node without a name still gets one that is the same each time.
    let node = hostname::node_name().unwrap_or_default();
    // FNV-1a, whose result no release of a library can change.
    let bytes = node.bytes().chain([0]).chain(bridge.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let [_, _, _, one, two, three, four, five] = hash.to_be_bytes();
    [0x02, one, two, three, four, five]
}
