use std::fmt;

/// A table of iptables that we write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Table {
    /// Holds nothing of ours but a canary.
    Mangle,
    /// Accepts, rejects and drops.
    Filter,
    /// Translates addresses.
    Nat,
}

impl Table {
    /// All of them, in the order in which a restore input names them.
    pub const ALL: [Self; 3] = [Self::Mangle, Self::Filter, Self::Nat];

    /// The name as iptables spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mangle => "mangle",
            Self::Filter => "filter",
            Self::Nat => "nat",
        }
    }

    /// The table of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|table| table.as_str() == name)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
