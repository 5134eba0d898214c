//! A rule as read from a kernel, parsed or as text.

use std::fmt;

use weft_model::IpFamily;

use crate::{ChainName, Rule, parse::is_target_name, words::Words};

/// A rule as the kernel has it, written by any process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SavedRule {
    /// A rule that this crate can parse.
    Known(Rule),
    /// The text of any other rule.
    Foreign(Box<str>),
}

impl SavedRule {
    /// Parses the text after `-A CHAIN ` in a ruleset of this family.
    pub fn parse(family: IpFamily, text: &str) -> Self {
        match Rule::parse_for(family, text) {
            Ok(rule) => Self::Known(rule),
            Err(_) => Self::Foreign(text.into()),
        }
    }

    /// The rule, if it was parsed.
    pub fn known(&self) -> Option<&Rule> {
        match self {
            Self::Known(rule) => Some(rule),
            Self::Foreign(_) => None,
        }
    }

    /// The chain that it jumps or goes to, even if the rest could not be parsed.
    pub fn jump(&self) -> Option<ChainName> {
        let text = match self {
            Self::Known(rule) => return rule.jump(),
            Self::Foreign(text) => text,
        };
        // An escape in a comment hides the words after it from `Words`; the target comes last.
        let mut words = text.split(' ').skip_while(|w| !matches!(*w, "-j" | "-g"));
        let mut found = None;
        while let Some(option) = words.next() {
            if matches!(option, "-j" | "-g") {
                found = words.next();
            }
        }
        let name = found.filter(|name| !is_target_name(name))?;
        ChainName::parse(name).ok()
    }

    /// True if it matches everything and does nothing, and so prints as nothing.
    pub(crate) fn is_blank(&self) -> bool {
        match self {
            Self::Known(rule) => *rule == Rule::new(),
            Self::Foreign(text) => Words::new(text).next().is_none(),
        }
    }
}

impl From<Rule> for SavedRule {
    fn from(rule: Rule) -> Self {
        Self::Known(rule)
    }
}

impl fmt::Display for SavedRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(rule) => rule.fmt(f),
            Self::Foreign(text) => f.write_str(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_rule_keeps_its_text_and_shows_its_jump() {
        let jumps = [
            ("-o eth0 -j cali-out", Some("cali-out")),
            ("-o eth0 -g other", Some("other")),
            ("-j LOG --log-prefix x", None),
            ("-m comment --comment \"it\\'s -j A\" -j B", Some("B")),
        ];
        for (text, chain) in jumps {
            let rule = SavedRule::parse(IpFamily::V4, text);
            assert_eq!(rule.known(), None, "{text}");
            assert_eq!(rule.to_string(), text);
            assert_eq!(rule.jump().map(|c| c.to_string()).as_deref(), chain);
        }
    }
}
