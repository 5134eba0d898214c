//! Splits `iptables-save` output into lines by kind, without parsing rules.

use crate::Table;

/// A line of a table, without its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// `:NAME POLICY`; the policy of a chain that is not built in is `-`.
    Chain(&'a str, &'a str),
    /// A rule, `-A CHAIN TEXT`.
    Rule(&'a str, &'a str),
    /// Any other line; `iptables-save` prints none.
    Other(&'a str),
}

/// Iterates over the output of `iptables-save` for the cost of finding the line ends.
///
/// Comments, counters, `COMMIT` and unsupported tables are left out.
pub fn saved_lines(text: &str) -> SavedLines<'_> {
    SavedLines {
        rest: text,
        line: 0,
        table: Section::None,
    }
}

/// The iterator of [`saved_lines`].
#[derive(Clone, Debug)]
pub struct SavedLines<'a> {
    rest: &'a str,
    line: usize,
    table: Section,
}

#[derive(Clone, Copy, Debug)]
enum Section {
    None,
    Foreign,
    Ours(Table),
}

impl<'a> SavedLines<'a> {
    /// Number of the last line, from 1.
    pub fn line_number(&self) -> usize {
        self.line
    }

    fn next_line(&mut self) -> Option<&'a str> {
        if self.rest.is_empty() {
            return None;
        }
        let (line, rest) = self.rest.split_once('\n').unwrap_or((self.rest, ""));
        self.rest = rest;
        self.line += 1;
        Some(line.trim_end())
    }
}

impl<'a> Iterator for SavedLines<'a> {
    type Item = (Table, Line<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let line = self.next_line()?;
            if let Some(name) = line.strip_prefix('*') {
                self.table = Table::parse(name).map_or(Section::Foreign, Section::Ours);
                continue;
            }
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let table = match self.table {
                Section::Foreign => continue,
                // A line outside of any table is reported with the first one.
                Section::None => return Some((Table::ALL[0], Line::Other(line))),
                Section::Ours(table) => table,
            };
            if line == "COMMIT" {
                self.table = Section::None;
                continue;
            }
            return Some((table, classify(line)));
        }
    }
}

fn classify(line: &str) -> Line<'_> {
    if let Some(chain) = line.strip_prefix(':') {
        return match chain.split_once(' ') {
            Some((name, rest)) => Line::Chain(
                name,
                rest.split_once(' ').map_or(rest, |(policy, _)| policy),
            ),
            None => Line::Other(line),
        };
    }
    match without_counters(line).strip_prefix("-A ") {
        Some(rule) => {
            let (chain, text) = rule.split_once(' ').unwrap_or((rule, ""));
            Line::Rule(chain, text)
        }
        None => Line::Other(line),
    }
}

/// `iptables-save -c` puts `[packets:bytes] ` in front of every rule.
pub(crate) fn without_counters(line: &str) -> &str {
    match line.strip_prefix('[').and_then(|l| l.split_once("] ")) {
        Some((_, rule)) => rule,
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_and_rules_come_with_their_table_and_without_counters() {
        let text = "# Generated\n*raw\n:PREROUTING ACCEPT [1:2]\n-A PREROUTING -j X\nCOMMIT\n\
                    *nat\n:OUTPUT ACCEPT [5:6]\n:KUBE-A - [0:0]\n[7:8] -A KUBE-A -j B\n\
                    -A KUBE-A\nCOMMIT\n# Completed\n";
        let lines: Vec<_> = saved_lines(text).collect();
        assert_eq!(
            lines,
            [
                (Table::Nat, Line::Chain("OUTPUT", "ACCEPT")),
                (Table::Nat, Line::Chain("KUBE-A", "-")),
                (Table::Nat, Line::Rule("KUBE-A", "-j B")),
                (Table::Nat, Line::Rule("KUBE-A", "")),
            ]
        );
    }

    #[test]
    fn lines_that_no_save_prints_are_reported_and_counted() {
        let mut lines = saved_lines("# x\n*nat\n-I KUBE-A -j B");
        assert_eq!(
            lines.next(),
            Some((Table::Nat, Line::Other("-I KUBE-A -j B")))
        );
        assert_eq!(lines.line_number(), 3);
        assert!(matches!(
            saved_lines("hello").next(),
            Some((_, Line::Other("hello")))
        ));
    }
}
