//! Address arithmetic for both IP families.

use std::net::IpAddr;

use ipnet::IpNet;
use weft_model::IpFamily;

/// An address as a number.
pub(crate) fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// The address with this number; bits beyond IPv4's 32 are dropped.
pub(crate) fn address(number: u128, family: IpFamily) -> IpAddr {
    match family {
        #[expect(clippy::cast_possible_truncation, reason = "IPv4 has 32 bits")]
        IpFamily::V4 => IpAddr::V4((number as u32).into()),
        IpFamily::V6 => IpAddr::V6(number.into()),
    }
}

/// Number of addresses of a network, at most `u64::MAX`.
pub(crate) fn address_count(net: IpNet) -> u64 {
    1_u64
        .checked_shl(u32::from(net.max_prefix_len() - net.prefix_len()))
        .unwrap_or(u64::MAX)
}

/// Every address of a network, the first and the last included.
#[derive(Clone, Debug)]
pub(crate) struct Addresses {
    next: u128,
    left: u64,
    family: IpFamily,
}

impl Addresses {
    pub(crate) fn of(net: IpNet) -> Self {
        Self {
            next: number(net.network()),
            left: address_count(net),
            family: IpFamily::of(net.addr()),
        }
    }
}

impl Iterator for Addresses {
    type Item = IpAddr;
    fn next(&mut self) -> Option<IpAddr> {
        self.left = self.left.checked_sub(1)?;
        let address = address(self.next, self.family);
        self.next = self.next.wrapping_add(1);
        Some(address)
    }
}
