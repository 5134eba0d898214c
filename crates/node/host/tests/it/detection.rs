//! Detection of the iptables variant.

use std::{fs, os::unix::fs::symlink, path::Path};

use weft_host::iptables::{DetectError, Iptables, SearchPath, Variant, VariantChoice};
use weft_model::{IpFamily, error_text};
use weft_testkit::lab;

use crate::support::{IPTABLES, open, saved};

const HINT: &[u8] = b"*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n";
const CANARY: &[u8] = b"*mangle\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n";

fn detected(family: IpFamily) -> Variant {
    Iptables::detect(family, VariantChoice::Auto)
        .unwrap()
        .variant()
}

/// The variant behind the plain name on this machine.
fn plain(lab: &lab::Lab) -> Variant {
    if lab
        .program("iptables", &["--version"])
        .contains("nf_tables")
    {
        Variant::Nft
    } else {
        Variant::Legacy
    }
}

#[test]
fn without_a_kubelet_the_plain_name_decides_and_nothing_is_created() {
    lab::with_programs(&IPTABLES, |lab| {
        for family in IpFamily::ALL {
            assert_eq!(detected(family), plain(lab));
        }
        let legacy = fs::read_to_string("/proc/net/ip_tables_names").unwrap();
        assert_eq!(legacy, "", "looking made legacy tables");
    });
}

#[test]
fn the_kubelets_legacy_hint_decides() {
    lab::with_programs(&IPTABLES, |_| {
        open(IpFamily::V4, Variant::Legacy).restore(HINT).unwrap();
        assert_eq!(detected(IpFamily::V4), Variant::Legacy);
        // The kubelet of a single-stack node creates its chains in one family.
        assert_eq!(detected(IpFamily::V6), Variant::Legacy);
    });
}

#[test]
fn the_kubelets_nft_canary_decides_against_foreign_legacy_tables() {
    lab::with_programs(&IPTABLES, |_| {
        let foreign = b"*mangle\n:FOREIGN - [0:0]\nCOMMIT\n";
        open(IpFamily::V4, Variant::Legacy)
            .restore(foreign)
            .unwrap();
        open(IpFamily::V4, Variant::Nft).restore(CANARY).unwrap();
        assert_eq!(detected(IpFamily::V4), Variant::Nft);
    });
}

#[test]
fn a_plain_name_serves_when_it_is_the_wanted_variant() {
    lab::with_programs(&IPTABLES, |_| {
        let directory = tempfile::tempdir().unwrap();
        let nft = open(IpFamily::V4, Variant::Nft);
        link(&nft.programs().command, &directory.path().join("iptables"));
        link(
            &nft.programs().save,
            &directory.path().join("iptables-save"),
        );
        link(
            &nft.programs().restore,
            &directory.path().join("iptables-restore"),
        );
        let search = SearchPath::of(&[directory.path()]);
        let detect = |choice| Iptables::detect_in(&search, IpFamily::V4, choice);

        for choice in [VariantChoice::Nft, VariantChoice::Auto] {
            let found = detect(choice).unwrap();
            assert_eq!(found.variant(), Variant::Nft);
            assert!(found.programs().command.ends_with("iptables"), "{found:?}");
            saved(&found, None);
        }
        let error = detect(VariantChoice::Legacy).unwrap_err();
        assert!(
            matches!(
                &error,
                DetectError::OtherVariant {
                    found: Variant::Nft,
                    ..
                }
            ),
            "{}",
            error_text(&error)
        );
    });
}

#[test]
fn a_missing_program_is_named() {
    let search = SearchPath::of(&[]);
    let cases = [
        (VariantChoice::Legacy, "`iptables-legacy` is not installed"),
        (VariantChoice::Nft, "`iptables-nft` is not installed"),
        (VariantChoice::Auto, "`iptables` is not installed"),
    ];
    for (choice, message) in cases {
        let error = Iptables::detect_in(&search, IpFamily::V4, choice).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
}

fn link(program: &Path, name: &Path) {
    symlink(program, name).unwrap();
}
