//! The nftables mode on this host: its families and backends, and the listener for foreign changes.

use std::{ffi::OsStr, io, path::Path, sync::Arc, thread, time::Duration};

use tokio::sync::Notify;
use weft_host::{iptables::VariantChoice, kernel_version::KernelVersion};
use weft_model::{IpFamily, error_text};
use weft_nftables::{HostKernel, Nftables, TableOptions, Watch, probe};
use weft_proxy::config::ProxyConfig;

pub(crate) use weft_nftables::TABLE;

use crate::{
    agent::FamilyKernel,
    first_sync::{FirstSync, after_packets_in_flight},
    host::{HostError, HostFlows, SKIP_KERNEL_CHECK},
    process::{KUBE_PROXY_TABLE, remove_iptables_rules, remove_table, required_family},
};

/// Time to wait for notifications before the listener checks that it is still needed.
const PATIENCE: Duration = Duration::from_secs(1);

/// kube-proxy's lower bound. Distributions with older kernels have a program `nft` that cannot read a
/// ruleset with newer expressions, so that it would fail for the tables of other programs too.
const REQUIRED_KERNEL: KernelVersion = KernelVersion {
    major: 5,
    minor: 13,
};

fn check_kernel(
    skip: Option<&OsStr>,
    running: impl FnOnce() -> io::Result<KernelVersion>,
) -> Result<(), HostError> {
    if skip.is_some_and(|value| !value.is_empty()) {
        return Ok(());
    }
    let running = running().map_err(HostError::UnknownKernel)?;
    if running < REQUIRED_KERNEL {
        return Err(HostError::OldKernel {
            running,
            required: REQUIRED_KERNEL,
        });
    }
    Ok(())
}

/// The families in which this kernel can do everything that the table needs: at least one, and the
/// one that is required.
pub(crate) fn families(
    required: Option<IpFamily>,
    options: TableOptions,
) -> Result<Vec<IpFamily>, HostError> {
    let skip = std::env::var_os(SKIP_KERNEL_CHECK);
    check_kernel(skip.as_deref(), KernelVersion::running)?;
    let mut found = Vec::new();
    let mut missing = None;
    for family in IpFamily::ALL {
        if family == IpFamily::V6 && !Path::new("/proc/net/if_inet6").exists() {
            tracing::warn!(%family, reason = "the kernel has no IPv6", "this family is not served");
            continue;
        }
        match probe(family, options) {
            Ok(()) => found.push(family),
            Err(error) => {
                let error = HostError::Nftables {
                    family,
                    reason: error_text(&error),
                };
                if required == Some(family) {
                    return Err(error);
                }
                tracing::warn!(%family, reason = %error, "this family is not served");
                missing.get_or_insert(error);
            }
        }
    }
    match missing {
        Some(error) if found.is_empty() => Err(error),
        _ => Ok(found),
    }
}

/// A backend for each family. What another mode or kube-proxy left goes after the first sync.
pub(crate) fn kernels(
    config: &ProxyConfig,
    variant: VariantChoice,
    options: TableOptions,
) -> Result<Vec<FamilyKernel>, HostError> {
    let families = families(required_family(config), options)?;
    let watch = Watch::new();
    let kernels: Vec<FamilyKernel> = families
        .into_iter()
        .map(|family| {
            let kernel = HostKernel::new(family, watch.clone());
            let backend = Nftables::with_options(kernel, options);
            // Failures are logged, and leave what was there before.
            let remove_others = after_packets_in_flight(move || {
                let _ = remove_table(family, KUBE_PROXY_TABLE);
                let _ = remove_iptables_rules(variant, &[family]);
            });
            tracing::info!(%family, "ready to write to nftables");
            FamilyKernel {
                family,
                backend: Box::new(FirstSync::new(Box::new(backend), remove_others)),
                flows: Box::new(HostFlows),
                disturbed: Arc::default(),
            }
        })
        .collect();
    listen(&watch, &kernels);
    Ok(kernels)
}

/// Receives notifications on a thread of its own, for as long as a family's loop is there.
fn listen(watch: &Watch, kernels: &[FamilyKernel]) {
    let loops = kernels
        .iter()
        .map(|kernel| (kernel.family, Arc::downgrade(&kernel.disturbed)));
    let loops: Vec<(IpFamily, std::sync::Weak<Notify>)> = loops.collect();
    let disturbed = loops.clone();
    watch.on_change(move |family| {
        let of_family = disturbed.iter().filter(|(other, _)| *other == family);
        for notify in of_family.filter_map(|(_, notify)| notify.upgrade()) {
            notify.notify_one();
        }
    });
    let mut notifications = match watch.listen() {
        Ok(notifications) => notifications,
        Err(error) => {
            tracing::warn!(%error, "cannot receive nftables notifications, audits read the table");
            return;
        }
    };
    let listener = move || {
        while loops.iter().any(|(_, notify)| notify.strong_count() > 0) {
            if let Err(error) = notifications.receive(PATIENCE) {
                tracing::warn!(%error, "nftables notifications ended, audits read the table");
                return;
            }
        }
    };
    let spawned = thread::Builder::new()
        .name("nftables-listener".to_owned())
        .spawn(listener);
    if let Err(error) = spawned {
        tracing::warn!(%error, "cannot start the listener of nftables notifications");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_feature_is_reported_with_the_mode_that_works() {
        let error = HostError::Nftables {
            family: IpFamily::V4,
            reason: "cannot add rule postrouting (masq): the kernel does not support it".to_owned(),
        };
        assert_eq!(
            error.to_string(),
            "cannot serve IPv4 by nftables: cannot add rule postrouting (masq): the kernel does not \
             support it; --proxy-mode=iptables works without it"
        );
    }

    #[test]
    fn kernels_before_5_13_are_refused_unless_the_check_is_skipped() {
        let check = |skip: Option<&str>, release: &str| {
            let version = KernelVersion::parse(release);
            let version = version.ok_or_else(|| io::Error::other("no number"));
            check_kernel(skip.map(OsStr::new), || version).map_err(|error| error.to_string())
        };
        assert_eq!(check(None, "5.13.1"), Ok(()));
        let refused = check(None, "5.12.0-generic").unwrap_err();
        assert!(
            refused.starts_with("cannot use nftables: the kernel is 5.12, expected 5.13 or later"),
            "{refused}"
        );
        assert!(
            check(Some(""), "5.12").is_err(),
            "an empty text skips nothing"
        );
        assert!(check(None, "unknown").is_err());
        for release in ["5.12", "unknown"] {
            assert_eq!(check(Some("false"), release), Ok(()));
        }
    }
}
