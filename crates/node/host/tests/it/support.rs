//! Helpers of the tests: programs of all variants, saved text.

use weft_host::{
    command::Spent,
    iptables::{Iptables, Variant, VariantChoice},
};
use weft_model::IpFamily;

/// Both variants, as every test of rules needs them.
pub(crate) const IPTABLES: [&str; 4] = [
    "iptables-legacy",
    "iptables-nft",
    "ip6tables-legacy",
    "ip6tables-nft",
];

pub(crate) fn open(family: IpFamily, variant: Variant) -> Iptables {
    let choice = match variant {
        Variant::Legacy => VariantChoice::Legacy,
        Variant::Nft => VariantChoice::Nft,
    };
    let tables = Iptables::detect(family, choice).unwrap();
    assert_eq!((tables.family(), tables.variant()), (family, variant));
    tables
}

/// The programs of every family and variant.
pub(crate) fn all() -> impl Iterator<Item = Iptables> {
    let pairs = IpFamily::ALL
        .into_iter()
        .flat_map(|family| Variant::ALL.map(|variant| (family, variant)));
    pairs.map(|(family, variant)| open(family, variant))
}

/// All lines of `iptables-save` as one text.
pub(crate) fn saved(tables: &Iptables, table: Option<&str>) -> (String, Spent) {
    let mut text = String::new();
    let spent = tables.save_lines(table, &mut |line| {
        text.push_str(line);
        text.push('\n');
    });
    (text, spent.unwrap())
}
