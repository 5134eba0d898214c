use std::path::Path;

use thiserror::Error;
use weft_model::IpFamily;

use crate::{
    command::CommandError,
    iptables::Iptables,
    sysctl::{Setting, Settings},
};

const DISABLED: Setting<'_> = Setting::Sysctl("net/ipv6/conf/all/disable_ipv6");

/// Why rules of a family cannot be written here.
#[derive(Debug, Error)]
pub enum Absence {
    /// The kernel was built or started without IPv6.
    #[error("the kernel has no IPv6")]
    NoIpv6,
    /// Somebody switched it off.
    #[error("net.ipv6.conf.all.disable_ipv6 is set")]
    Ipv6Disabled,
    /// The nat table cannot be listed.
    #[error("the nat table cannot be listed")]
    NoNat(#[source] CommandError),
}

impl Iptables {
    /// Whether rules of this family can be written and would see traffic.
    pub fn is_present(&self) -> bool {
        self.presence().is_ok()
    }

    /// [`Self::is_present`], with the reason if not.
    pub fn presence(&self) -> Result<(), Absence> {
        if self.family == IpFamily::V6 {
            // The thread's own network; `/proc/net` would be that of the main thread.
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
