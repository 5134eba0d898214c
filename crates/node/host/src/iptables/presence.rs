//! Availability of an address family for rules.

use std::path::Path;

use thiserror::Error;
use weft_model::IpFamily;

use crate::{
    command::CommandError,
    iptables::Iptables,
    sysctl::{Setting, Settings},
};

const DISABLED: Setting<'_> = Setting::Sysctl("net/ipv6/conf/all/disable_ipv6");

/// Reason why rules of a family cannot be written here.
#[derive(Debug, Error)]
pub enum Absence {
    /// The kernel was built or started without IPv6.
    #[error("the kernel has no IPv6")]
    NoIpv6,
    /// The sysctl `disable_ipv6` is set.
    #[error("net.ipv6.conf.all.disable_ipv6 is set")]
    Ipv6Disabled,
    /// Listing the nat table failed.
    #[error("cannot list the nat table")]
    NoNat(#[source] CommandError),
}

impl Iptables {
    /// Returns whether rules of this family can be written and would see traffic.
    pub fn is_present(&self) -> bool {
        self.presence().is_ok()
    }

    /// [`Self::is_present`] with the reason.
    pub fn presence(&self) -> Result<(), Absence> {
        if self.family == IpFamily::V6 {
            // The thread's own network namespace; `/proc/net` is that of the main thread.
            if !Path::new("/proc/thread-self/net/if_inet6").exists() {
                return Err(Absence::NoIpv6);
            }
            if Settings::default()
                .read(DISABLED)
                .is_ok_and(|value| value == "1")
            {
                return Err(Absence::Ipv6Disabled);
            }
        }
        match self.list("nat", "POSTROUTING") {
            Ok(_) => Ok(()),
            Err(error) => Err(Absence::NoNat(error)),
        }
    }
}
