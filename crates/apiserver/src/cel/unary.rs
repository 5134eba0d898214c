//! Removes repeated unary operators (`!!x`, `--x`) from CEL text before parsing.
//!
//! The parser needs quadratic time for a run of operators, and exponential time for nested runs;
//! upstream's parser collapses them.

/// Rewrites an expression so that no two unary operators are adjacent.
pub(super) fn shorten(text: &str) -> String {
    let mut scan = Scan {
        rest: text,
        out: String::with_capacity(text.len()),
        after_operand: false,
    };
    while let Some(first) = scan.rest.chars().next() {
        match first {
            '!' | '-' => scan.operators(first),
            '"' | '\'' => scan.literal(Escapes::Processed),
            '/' if scan.rest.starts_with("//") => {
                let end = scan.rest.find('\n').unwrap_or(scan.rest.len());
                scan.keep(end);
            }
            _ if is_word(first) => scan.word(),
            _ => {
                if !first.is_whitespace() {
                    scan.after_operand = matches!(first, ')' | ']' | '}' | '`');
                }
                scan.keep(first.len_utf8());
            }
        }
    }
    scan.out
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Escape processing of a string literal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Escapes {
    Processed,
    Raw,
}

struct Scan<'a> {
    rest: &'a str,
    out: String,
    /// The last token was an operand, so a minus after it is binary.
    after_operand: bool,
}

impl Scan<'_> {
    fn keep(&mut self, bytes: usize) {
        let (kept, rest) = self.rest.split_at(bytes);
        self.out.push_str(kept);
        self.rest = rest;
    }

    /// A name, a number, or the prefix of a literal.
    fn word(&mut self) {
        let end = self.rest.find(|c| !is_word(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        let is_prefix = matches!(word.to_ascii_lowercase().as_str(), "r" | "b" | "br" | "rb");
        self.after_operand = word != "in";
        self.keep(end);
        if is_prefix && rest.starts_with(['"', '\'']) {
            self.literal(if word.contains(['r', 'R']) {
                Escapes::Raw
            } else {
                Escapes::Processed
            });
        }
    }

    /// A string literal with one or three quotes on each side.
    fn literal(&mut self, escapes: Escapes) {
        let quote = &self.rest[..1];
        let triple = quote.repeat(3);
        let quote = if self.rest.starts_with(&triple) {
            triple.as_str()
        } else {
            quote
        };
        let mut end = quote.len();
        while end < self.rest.len() && !self.rest[end..].starts_with(quote) {
            let mut inside = self.rest[end..].chars();
            let first = inside.next();
            end += first.map_or(1, char::len_utf8);
            if escapes == Escapes::Processed && first == Some('\\') {
                end += inside.next().map_or(0, char::len_utf8);
            }
        }
        let end = (end + quote.len()).min(self.rest.len());
        self.keep(end);
        self.after_operand = true;
    }

    /// A run of one operator, including white space.
    fn operators(&mut self, operator: char) {
        let inside = |c: char| c == operator || c.is_whitespace();
        let end = self.rest.find(|c| !inside(c)).unwrap_or(self.rest.len());
        let (run, rest) = self.rest.split_at(end);
        let is_binary = self.after_operand && operator == '-';
        self.after_operand = false;
        let unary = run.matches(operator).count() - usize::from(is_binary);
        if unary < 2 {
            // A single operator stays as written: refusals quote the rule.
            self.keep(end);
            return;
        }
        if is_binary {
            self.out.push_str("- ");
        }
        if unary % 2 == 1 {
            self.out.push(operator);
        }
        self.out.push(' ');
        self.rest = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_operators_become_one_or_none() {
        for (text, shorter) in [
            ("!x", "!x"),
            ("!!x", " x"),
            ("! ! !x", "! x"),
            ("a != b", "a != b"),
            ("a - -b", "a - -b"),
            ("a - - -b", "a -  b"),
            ("1--1", "1--1"),
            ("--1", " 1"),
            ("x in --y", "x in  y"),
            ("(a)-b", "(a)-b"),
            (
                "'!!--' + r'\\' + '''!!'!!'''",
                "'!!--' + r'\\' + '''!!'!!'''",
            ),
            ("\"\\\"!!\" + !!a", "\"\\\"!!\" +  a"),
            ("a // !!--", "a // !!--"),
            ("a['x']---1", "a['x']-  1"),
            ("'never closed !!", "'never closed !!"),
            ("ä!!", "ä "),
        ] {
            assert_eq!(shorten(text), shorter, "{text}");
        }
    }
}
