//! Public types at the roots of crates: one name, one meaning.

use std::collections::{BTreeMap, BTreeSet};

use crate::tree;

/// Names of two types in two crates, each with its reason.
const TWICE: [(&str, &str); 6] = [
    (
        "Fault",
        "an injected failure of the API server; a CNI error result, as the specification has it",
    ),
    (
        "HostKernel",
        "the backends of the proxy mirror one another; an agent uses one of them at a time",
    ),
    ("Kernel", "as HostKernel"),
    ("KernelError", "as HostKernel"),
    (
        "Limits",
        "of a listener; of one call of the CNI plugin, which has no listeners",
    ),
    (
        "Route",
        "a route of a provider's table; the wire type of Azure CNS",
    ),
];

/// The names of types that a crate root exports and that are the crate's own.
fn exported(source: &str) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    for item in source.split("\npub use ").skip(1) {
        let item = item.split(';').next().unwrap_or_default();
        // What another crate of the workspace defines is the same type there and here.
        if !item.starts_with("weft_") {
            found.extend(types(item));
        }
    }
    for line in source.lines() {
        let kinds = ["pub struct ", "pub enum ", "pub trait ", "pub type "];
        let rest = kinds.iter().find_map(|kind| line.strip_prefix(kind));
        let name = rest.and_then(|rest| rest.split(|c: char| !c.is_alphanumeric()).next());
        found.extend(name);
    }
    found
}

/// The names in a `use` tree that are written as types are; after `as`, the name that is exported.
fn types(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let paths = text.split([',', '{', '}']).map(str::trim);
    let last = paths.filter_map(move |path| path.rsplit(|c| !is_part(c)).next());
    let names = last.filter_map(|path| path.rsplit("::").next());
    names.filter(|name| {
        name.starts_with(char::is_uppercase) && name.contains(|c: char| c.is_ascii_lowercase())
    })
}

#[test]
fn crates_do_not_export_two_types_of_one_name() {
    let mut owners: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in tree::crate_directories() {
        let path = tree::root().join("crates").join(&name).join("src/lib.rs");
        // Programs export nothing.
        let Ok(source) = std::fs::read_to_string(path) else {
            continue;
        };
        for exported in exported(&source) {
            owners
                .entry(exported.to_owned())
                .or_default()
                .push(name.clone());
        }
    }
    assert!(owners.len() > 300, "only {} types were found", owners.len());
    owners.retain(|_, crates| crates.len() > 1);
    let allowed: BTreeSet<&str> = TWICE.into_iter().map(|(name, _)| name).collect();
    let found: BTreeSet<&str> = owners.keys().map(String::as_str).collect();
    assert_eq!(found, allowed, "{owners:#?}");
}

#[test]
fn exported_types_are_found_in_all_their_forms() {
    let source = "mod a;\npub use a::{First, function, b::Second,\n    c::Third as Fourth, LIMIT};\n\
                  pub use weft_model::ObjectKey;\npub struct Fifth<T>(T);\nuse std::fmt::Debug;\n";
    let found: Vec<&str> = exported(source).into_iter().collect();
    assert_eq!(found, ["Fifth", "First", "Fourth", "Second"]);
}
