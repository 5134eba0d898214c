//! Properties of text: a printed rule reads back as itself, and no name adds words to it.

use proptest::prelude::*;
use weft_model::{IpFamily, Protocol};
use weft_ruleset::{
    ChainName, Comment, Interface, Match, Negatable, Recent, Rule, Ruleset, SavedRule, Table,
    Target,
};

use crate::arbitrary::{self, Kind};

fn kind() -> impl Strategy<Value = Kind> {
    let families = prop::sample::select(&IpFamily::ALL[..]);
    let tables = prop::sample::select(&Table::ALL[..]);
    (families, tables).prop_map(|(family, table)| Kind {
        family,
        table,
        counters: true,
    })
}

fn rule() -> impl Strategy<Value = (Kind, Rule)> {
    kind().prop_flat_map(|kind| (Just(kind), arbitrary::rule(kind)))
}

/// Splits a line as a reader with double quotes would, independently of the crate.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![];
    let mut word: Option<String> = None;
    let mut quoted = false;
    for character in line.chars() {
        match character {
            '"' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            ' ' if !quoted => words.extend(word.take()),
            other => word.get_or_insert_default().push(other),
        }
    }
    assert!(!quoted, "{line}");
    words.extend(word);
    words
}

/// The rule of a kind with this comment, device and chain, and the words it must have.
fn with_names(comment: &Comment, device: &Interface, chain: ChainName) -> (Rule, Vec<String>) {
    let recent = Recent::Set {
        name: chain,
        family: IpFamily::V4,
    };
    let rule = Rule {
        in_interface: Some(Negatable::is(device.clone())),
        ..Rule::new()
    }
    .comment(comment.clone())
    .transport(Protocol::Tcp, Some(80))
    .with(Match::Recent(recent))
    .then(Target::Jump(chain));
    let (comment, device, chain) = (comment.as_str(), device.as_str(), chain.as_str());
    let expected = [
        "-i",
        device,
        "-p",
        "tcp",
        "-m",
        "comment",
        "--comment",
        comment,
        "-m",
        "tcp",
        "--dport",
        "80",
        "-m",
        "recent",
        "--set",
        "--name",
        chain,
        "--mask",
        "255.255.255.255",
        "--rsource",
        "-j",
        chain,
    ];
    (rule, expected.map(str::to_owned).to_vec())
}

proptest! {
    #[test]
    fn a_printed_rule_reads_back_as_itself((kind, rule) in rule()) {
        let text = rule.to_string();
        prop_assert_eq!(Rule::parse_for(kind.family, &text), Ok(rule.clone()), "{}", text);
        prop_assert_eq!(Rule::parse(&text), Ok(rule), "{}", text);
    }

    #[test]
    fn whatever_a_name_holds_it_is_refused_or_stays_one_word(
        comment in arbitrary::hostile_text(),
        device in arbitrary::hostile_text(),
        chain in arbitrary::hostile_text(),
    ) {
        let comment = Comment::new(comment).unwrap_or(Comment::new("fine").unwrap());
        let device = Interface::new(&device).unwrap_or(Interface::new("eth0").unwrap());
        let chain = ChainName::parse(&chain).unwrap_or(ChainName::fixed("FINE"));
        let (rule, expected) = with_names(&comment, &device, chain);
        let text = rule.to_string();
        prop_assert!(!text.contains(char::is_control), "{:?}", text);
        prop_assert_eq!(words(&text), expected);
    }

    #[test]
    fn arbitrary_text_is_read_or_refused_but_never_crashes(
        text in arbitrary::hostile_text(),
    ) {
        if let Ok(rule) = Rule::parse(&text) {
            let printed = rule.to_string();
            prop_assert_eq!(Rule::parse(&printed), Ok(rule));
        }
        let _ = Ruleset::parse(&text, IpFamily::V4);
        let mut ruleset = Ruleset::new(IpFamily::V4);
        let _ = ruleset.restore(&text);
        let _ = SavedRule::Foreign(text.into()).jump();
    }

    #[test]
    fn a_printed_ruleset_reads_back_as_itself(
        kind in kind(),
        rules in prop::collection::vec(rule(), 0..8),
    ) {
        let mut ruleset = Ruleset::new(kind.family);
        for (other, rule) in rules {
            if other.family == kind.family {
                ruleset.append(other.table, ChainName::fixed("KUBE-A"), rule);
            }
        }
        let text = ruleset.to_string();
        prop_assert_eq!(Ruleset::parse(&text, kind.family).unwrap(), ruleset);
    }
}
