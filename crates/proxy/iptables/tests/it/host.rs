//! The real kernel in a namespace, with both variants of iptables and both families.

use weft_host::{
    iptables::{Iptables as Programs, SearchPath, Variant, VariantChoice},
    netfilter::Netfilter,
};
use weft_iptables::{HostKernel, Kernel as _, Options, OwnWrites};
use weft_model::IpFamily;
use weft_ruleset::{NfacctName, Ruleset};

use crate::world::{Visible, World};

/// Programs that tests of real rules need.
pub(crate) const PROGRAMS: [&str; 4] = [
    "iptables-nft",
    "iptables-legacy",
    "ip6tables-nft",
    "ip6tables-legacy",
];

impl Visible for HostKernel {
    fn rules(&mut self, family: IpFamily) -> Ruleset {
        Ruleset::parse(&saved(self), family).unwrap()
    }
}

/// The output of `iptables-save`, without comment lines and counters.
pub(crate) fn saved(kernel: &mut HostKernel) -> String {
    let mut text = String::new();
    let mut keep = |line: &str| {
        match line.split_once(" [") {
            _ if line.starts_with('#') => return,
            Some((chain, _)) if line.starts_with(':') => text.extend([chain, " [0:0]"]),
            _ => text.push_str(line),
        }
        text.push('\n');
    };
    kernel.save(&mut keep).unwrap();
    text
}

/// The rules alone, sorted: groups of Services may be in any order.
pub(crate) fn sorted_rules(text: &str) -> Vec<&str> {
    let mut rules: Vec<&str> = text.lines().filter(|line| line.starts_with("-A")).collect();
    rules.sort_unstable();
    rules
}

/// Every family with every variant.
pub(crate) fn everywhere() -> impl Iterator<Item = (IpFamily, Variant)> {
    let families = IpFamily::ALL.into_iter();
    families.flat_map(|family| Variant::ALL.map(|variant| (family, variant)))
}

pub(crate) fn programs(family: IpFamily, variant: Variant) -> Programs {
    programs_in(&SearchPath::from_environment(), family, variant)
}

pub(crate) fn programs_in(search: &SearchPath, family: IpFamily, variant: Variant) -> Programs {
    let choice = match variant {
        Variant::Legacy => VariantChoice::Legacy,
        Variant::Nft => VariantChoice::Nft,
    };
    Programs::detect_in(search, family, choice).unwrap()
}

pub(crate) fn kernel(family: IpFamily, variant: Variant) -> HostKernel {
    HostKernel::new(programs(family, variant), OwnWrites::default())
}

/// A proxy over the lab's kernel, which has the counters that its rules name.
pub(crate) fn world(family: IpFamily, variant: Variant, options: Options) -> World<HostKernel> {
    if options.nfacct {
        ensure_counters();
    }
    World::on(kernel(family, variant), family, options)
}

pub(crate) fn ensure_counters() {
    let mut netfilter = Netfilter::open().unwrap();
    for counter in NfacctName::ALL {
        netfilter.ensure_counter(counter.as_str()).unwrap();
    }
}
